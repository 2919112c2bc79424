#!/usr/bin/env python3
"""Tokens per second of a training step on two ranks: Ashlar against PyTorch's DDP and FSDP2 over gloo.

Both sides: fp32, AdamW for every parameter, gradient clipping, the same global batch of whole rows, two ranks with one
thread each on this machine.  PyTorch trains ZayaForCausalLM of transformers in two processes, as DistributedDataParallel
and as FSDP2 (fully_shard on every block), each eager and compiled, with grouped_mm and eager experts; the fastest of
DDP and the fastest of FSDP2 stay.  They and `ashlar bench ranks`, on threads and under mpirun, with parallel.zero 0, 1
and 3, then run in alternation.  Processes that wait for their turn sleep.

Run by scripts/peers/ranks.sh, which makes the virtual environment.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import ZayaConfig, ZayaForCausalLM

RANKS = 2
NANO = dict(vocab_size=8192, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
            head_dim=64, num_experts=8, moe_intermediate_size=512, router_hidden_size=64)
BATCH, TOKENS = 4, 512
WAIT_S = 1200  # for a variant to compile


class Model:
    """One variant on one rank, ready to run steps."""

    def __init__(self, kind, compiled, experts, rank):
        torch.manual_seed(0)
        hybrid = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        config = ZayaConfig(**NANO, layer_types=["hybrid"] * NANO["num_hidden_layers"],
                            rope_parameters={"hybrid": hybrid})
        model = ZayaForCausalLM(config)
        model.set_experts_implementation(experts)
        if kind == "DDP":
            model = DistributedDataParallel(model)
            if compiled:
                model = torch.compile(model)
        else:
            mesh = init_device_mesh("cpu", (RANKS,))
            for layer in model.model.layers:
                if compiled:
                    layer.compile()
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        generator = torch.Generator().manual_seed(rank)
        self.ids = torch.randint(1, NANO["vocab_size"], (BATCH // RANKS, TOKENS), generator=generator)

    def step(self):
        loss = self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def serve(rank, port, variant, pipe):
    """A process of the peer: builds the model, then runs steps when told to."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        start = time.perf_counter()
        model = Model(*variant, rank)
        model.step()
        first = time.perf_counter() - start
        for _ in range(2):
            model.step()
        pipe.send(first)
        while (steps := pipe.recv()) > 0:
            seconds = []
            dist.barrier()
            for _ in range(steps):
                start = time.perf_counter()
                model.step()
                seconds.append(time.perf_counter() - start)
            pipe.send(seconds)
        dist.destroy_process_group()
    except Exception as error:  # told to the driver, which prints it
        pipe.send(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:110]}")
        os._exit(1)  # the other rank may wait for this one


class Peer:
    """A variant on all its ranks."""

    def __init__(self, variant):
        self.variant = variant
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.get_context("spawn")
        pipes = [context.Pipe() for _ in range(RANKS)]
        self.pipes = [here for here, _ in pipes]
        self.processes = [context.Process(target=serve, args=(rank, port, variant, there), daemon=True)
                          for rank, (_, there) in enumerate(pipes)]
        for process in self.processes:
            process.start()
        self.first_step_s = max(self.answers())

    def answers(self):
        got, deadline = [None] * RANKS, time.monotonic() + WAIT_S
        while any(answer is None for answer in got):
            for rank, pipe in enumerate(self.pipes):
                if got[rank] is None and pipe.poll(0.2):
                    got[rank] = pipe.recv()
                    if isinstance(got[rank], str):
                        self.kill()
                        raise RuntimeError(got[rank])
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"no answer within {WAIT_S} s")
        return got

    def tokens_per_second(self, steps):
        """Of the median step; ranks leave a step together, so that the first one's times hold for all."""
        for pipe in self.pipes:
            pipe.send(steps)
        return BATCH * TOKENS / statistics.median(self.answers()[0])

    def end(self):
        for pipe in self.pipes:
            pipe.send(0)
        for process in self.processes:
            process.join(30)
        self.kill()

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def name_of(variant):
    kind, compiled, experts = variant
    return f"{kind}{' compiled' if compiled else ''}, {experts}"


def best_of(kind, only, steps):
    best, best_rate = None, 0.0
    for compiled in (False, True):
        for experts in ("grouped_mm", "eager"):
            variant = (kind, compiled, experts)
            if only not in name_of(variant):
                continue
            try:
                peer = Peer(variant)
                rate = peer.tokens_per_second(steps)
                peer.end()
                print(f"  PyTorch {name_of(variant):<28} {rate:8.0f} tokens/s  "
                      f"(first step {peer.first_step_s:.1f} s)", flush=True)
                if rate > best_rate:
                    best, best_rate = variant, rate
            except RuntimeError as error:  # reported, not hidden
                print(f"  PyTorch {name_of(variant):<28} failed: {error}", flush=True)
    return best


def ashlar_rate(binary, recipe, engine, zero, steps):
    command = [binary, "bench", "ranks", recipe, "--json", "--steps", str(steps), "optim.matrices=adamw",
               "train.precision=fp32", "train.threads=1", f"train.global_batch={BATCH}",
               f"train.micro_batch={BATCH // RANKS}", f"data.sequence_length={TOKENS}", f"parallel.zero={zero}"]
    if engine == "mpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(RANKS), *command]
    else:
        command += ["--ranks", str(RANKS)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["ranks"] != RANKS or report["threads"] != 1 or report["engine"] != engine:
        sys.exit(f"{' '.join(command)} ran {report['ranks']} ranks ({report['engine']}), {report['threads']} threads")
    return report["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True, help="the ashlar binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each in a round")
    parser.add_argument("--only", default="", help="only PyTorch variants whose name holds this")
    args = parser.parse_args()
    recipe = str(pathlib.Path(__file__).resolve().parents[2] / "recipes" / "zaya1-nano.toml")
    print(f"nano: {BATCH} x {TOKENS} tokens a step, {RANKS} ranks of 1 thread on {len(os.sched_getaffinity(0))} CPUs, "
          f"fp32, AdamW; PyTorch {torch.__version__}, gloo; load {os.getloadavg()[0]:.2f}", flush=True)
    variants = [v for v in (best_of(kind, args.only, args.steps) for kind in ("DDP", "FSDP2")) if v]
    if not variants:
        sys.exit("no PyTorch variant ran")
    peers = [Peer(variant) for variant in variants]
    rows = [(engine, zero) for engine in ("thread", "mpi") for zero in (0, 1, 3)]
    theirs, ours = {p.variant: [] for p in peers}, {row: [] for row in rows}
    for number in range(args.rounds):
        for peer in peers:
            theirs[peer.variant].append(peer.tokens_per_second(args.steps))
        for row in rows:
            ours[row].append(ashlar_rate(args.ashlar, recipe, *row, args.steps))
        print(f"  round {number} (load {os.getloadavg()[0]:.2f}): "
              + ", ".join(f"{name_of(v)} {rates[-1]:.0f}" for v, rates in theirs.items()) + "; Ashlar "
              + ", ".join(f"{e} zero {z} {rates[-1]:.0f}" for (e, z), rates in ours.items()), flush=True)
    for peer in peers:
        peer.end()
    header = "".join(f"{'/ ' + name_of(v).split(',')[0]:>18}" for v in theirs)
    print(f"{'tokens/s, median of rounds':<34}{'':>9}{header}   (ratio, median of rounds)")
    for label, rates in [*((f"PyTorch {name_of(v)}", r) for v, r in theirs.items()),
                         *((f"Ashlar {e}, zero {z}", r) for (e, z), r in ours.items())]:
        ratios = "".join(f"{statistics.median(o / t for o, t in zip(rates, their)):>18.2f}"
                         for their in theirs.values())
        print(f"{label:<34}{statistics.median(rates):>9.0f}{ratios}")


if __name__ == "__main__":
    main()
