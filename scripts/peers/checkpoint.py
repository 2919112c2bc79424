"""Saves and loads one state with Ashlar's checkpoint engine, with torch.distributed.checkpoint (DCP) and with bytecheckpoint,
in turn.

The states are those that `ashlar bench checkpoint --list` prints.  DCP's ranks are processes that gloo joins, one thread
each, as Ashlar's ranks are threads of one process.  Rows and stacks of experts are DTensors sharded in dim 0, flat shares
are one-dimensional DTensors (which is how FSDP1 keeps them), copies are replicated DTensors.  Tensor times data ranks are
DTensors on a 2-d mesh, rows by tensor and then by data ranks, because DCP knows no share that ends inside of a row.
bytecheckpoint saves the same DTensors as the state of a model of its framework "fsdp2"; it needs PyTorch 2.5, so that its
ranks run this script with --job in a virtual environment of its own.

For each variant of a save: block, the time during which the caller waits (all of a synchronous save; the call of
async_save and the wait for its staging before the next update), and save, until everything is on disk.  Between them both
sides compute for --step-seconds.  Loads are cold: pages of the files are dropped before.
"""

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def drop_cached(directory):
    for folder, _, names in os.walk(directory):
        for name in names:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


class Loop:
    """Multiplications and additions over what the first cache holds, as many as take so long alone."""

    def __init__(self, seconds):
        self.values = torch.ones(4096)
        self.turns = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.turn()
            self.turns += 1

    def turn(self):
        for _ in range(16):
            self.values.mul_(0.999).add_(0.5)

    def run(self):
        for _ in range(self.turns):
            self.turn()


def make_state(tensors, layout, rank, fill):
    """{name: DTensor} of this rank, and the bytes that it holds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    cut, ranks, tp = layout["cut"], layout["ranks"], layout["tp"]
    if cut == "grid":
        mesh = init_device_mesh("cpu", (tp, ranks // tp), mesh_dim_names=("tp", "dp"))
        placements = [Shard(0), Shard(0)]
    else:
        mesh = init_device_mesh("cpu", (ranks,))
        placements = [{"rows": Shard(0), "flat": Shard(0), "columns": Shard(1), "copies": Replicate()}[cut]]
    state = {}
    if cut == "flat":
        total = sum(torch.Size(t["shape"]).numel() for t in tensors)
        tensors = [{"name": "flat", "shape": [total]}]
    for index, tensor in enumerate(tensors):
        shape = list(tensor["shape"])
        if cut == "columns" and len(shape) == 3:
            placements = [Shard(2)]
        local = torch.distributed.tensor.zeros(shape, device_mesh=mesh, placements=placements, dtype=torch.float32)
        if fill:
            flat = local.to_local().view(-1)
            flat.copy_(torch.arange(index, index + flat.numel(), dtype=torch.int32).view(torch.float32))
        state[tensor["name"]] = local
    return state


def async_options(name, dcp):
    """"async": PyTorch's defaults; "async staged": copied in the background; "async process": saved by a process."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    kind = dcp.state_dict_saver.AsyncCheckpointerType
    if name == "async staged":  # pinned memory and non-blocking copies are CUDA's
        return {"async_stager": DefaultStager(StagingOptions(False, True, True, False))}
    return {"async_checkpointer_type": kind.PROCESS if name == "async process" else kind.THREAD}


def slowest(seconds):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def rank_main(rank, world, job, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_system")  # else each of 16,384 tensors takes a descriptor, more than are allowed
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    out = {}
    try:
        run_job(rank, job, out)
    except Exception:  # told to the caller, which prints it
        out["error"] = traceback.format_exc(limit=3)
    if rank == 0:
        results.put(out)
    dist.destroy_process_group()


def run_job(rank, job, out):
    path, sync = os.path.join(job["directory"], "peer"), job["sync"]
    state = make_state(job["tensors"], job["layout"], rank, fill=job["kind"] == "save")
    bytecheckpoint = job["variant"].startswith("bytecheckpoint")
    if job["kind"] == "save":
        (save_with_bytecheckpoint if bytecheckpoint else save_rounds)(rank, job, path, state, out)
        return
    load = load_with_bytecheckpoint if bytecheckpoint else load_with_dcp
    for _ in range(job["rounds"]):
        for tensor in state.values():
            tensor.to_local().zero_()
        dist.barrier()
        if rank == 0:
            if not sync:
                os.sync()
            drop_cached(path)
        out.setdefault("load", []).append(timed(lambda: load(path, state)))


def load_with_dcp(path, state):
    import torch.distributed.checkpoint as dcp

    dcp.load(state, storage_reader=dcp.FileSystemReader(path))


def timed(body):
    dist.barrier()
    start = time.perf_counter()
    body()
    return slowest(time.perf_counter() - start)


def save_rounds(rank, job, path, state, out):
    import torch.distributed.checkpoint as dcp

    name = job["variant"]
    options = {} if name == "save" else async_options(name, dcp)
    loop = Loop(job["step_s"])
    block, save = out.setdefault("block", []), out.setdefault("save", [])
    for _ in range(job["rounds"]):
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()
        writer = dcp.FileSystemWriter(path, sync_files=job["sync"], thread_count=1)
        if name == "save":
            save.append(timed(lambda: dcp.save(state, storage_writer=writer)))
            block.append(save[-1])
            continue
        start = time.perf_counter()
        future = dcp.async_save(state, storage_writer=writer, **options)
        blocked = time.perf_counter() - start
        loop.run()
        before = time.perf_counter()
        staged = getattr(future, "staging_completion", None)
        if staged is not None:
            staged.result()
        blocked += time.perf_counter() - before
        (getattr(future, "upload_completion", None) or future).result()
        block.append(slowest(blocked))
        save.append(slowest(time.perf_counter() - start))
    out["files"] = len(os.listdir(path))


class Held:
    """What bytecheckpoint takes for a model."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        pass  # it was loaded in place


def save_with_bytecheckpoint(rank, job, path, state, out):
    """As save_rounds.  The first save also makes the plan that later ones find again, as in a run: it is not counted."""
    import bytecheckpoint
    from bytecheckpoint.engine import _store_engine

    fast = job["variant"] == "bytecheckpoint fast"
    _store_engine.sync_files = job["sync"]
    loop = Loop(job["step_s"])
    block, save = out.setdefault("block", []), out.setdefault("save", [])
    for step in range(1 + job["rounds"]):
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()
        complete = threading.Event()  # of rank 0, once the files of all ranks are written
        start = time.perf_counter()
        bytecheckpoint.save(path, {"model": Held(state)}, framework="fsdp2", fast_saving=fast, global_steps=step,
                            callback=complete.set)
        blocked = time.perf_counter() - start
        if fast:
            loop.run()
        if rank == 0:
            complete.wait()
        dist.barrier()
        seconds = slowest(time.perf_counter() - start)
        if step > 0:
            block.append(slowest(blocked))
            save.append(seconds)
    out["files"] = sum(len(names) for _, _, names in os.walk(path))


def load_with_bytecheckpoint(path, state):
    import bytecheckpoint

    (step,) = (name for name in os.listdir(path) if name.startswith("global_step_"))
    bytecheckpoint.load(os.path.join(path, step), {"model": Held(state)}, framework="fsdp2")


def run_ranks(world, job):
    context = mp.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=rank_main, args=(rank, world, job, results)) for rank in range(world)]
    for process in ranks:
        process.start()
    out = None
    while out is None:
        try:
            out = results.get(timeout=1)
        except Exception:  # queue.Empty: look whether a rank has died
            if any(process.exitcode not in (None, 0) for process in ranks):
                out = {"error": "a rank ended with exit codes %s" % [p.exitcode for p in ranks]}
    for process in ranks:
        process.join()
    return out


def run_ashlar(arguments, workload):
    command = [arguments.ashlar, "bench", "checkpoint", "--json", "--workload", workload, "--gib", str(arguments.gib),
               "--ranks", str(arguments.ranks), "--repeats", str(arguments.repeats), "--step-seconds",
               str(arguments.step_seconds), "--dir", os.path.join(arguments.dir, "ashlar")]
    if arguments.no_sync:
        command.append("--no-sync")
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


BYTECHECKPOINT = "build/peers/bytecheckpoint"


def make_bytecheckpoint():
    """Why bytecheckpoint cannot take part, or nothing if it can."""
    if not os.path.exists(BYTECHECKPOINT + "/bin/python"):
        subprocess.run([sys.executable, "-m", "venv", BYTECHECKPOINT], check=True)
    python = BYTECHECKPOINT + "/bin/python"
    check = [python, "-c", "import bytecheckpoint.api.save"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return ""
    print("making %s: bytecheckpoint and its PyTorch, several minutes" % BYTECHECKPOINT, file=sys.stderr)
    pip = subprocess.run([python, "-m", "pip", "install", *os.environ.get("PEERS_PIP", "").split(),
                          "bytecheckpoint==0.0.2", "numpy<2"], capture_output=True, text=True)
    if pip.returncode:
        return "does not install: " + (pip.stderr.strip().splitlines() or ["?"])[-1]
    load = subprocess.run(check, capture_output=True, text=True)
    return "" if load.returncode == 0 else "does not import: " + load.stderr.strip().splitlines()[-1]


def run_bytecheckpoint(world, job):
    """As run_ranks, in its own virtual environment."""
    ran = subprocess.run([BYTECHECKPOINT + "/bin/python", __file__, "--job"], input=json.dumps([world, job]), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if ran.returncode:
        return {"error": (ran.stderr.strip().splitlines() or ["exit code %d" % ran.returncode])[-1]}
    return json.loads(ran.stdout.strip().splitlines()[-1])


def run_peer(variant, world, job):
    return (run_bytecheckpoint if variant.startswith("bytecheckpoint") else run_ranks)(world, job)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ashlar", required=True)
    parser.add_argument("--workload", default="small,large,copies,flat,experts,grid,gather")
    parser.add_argument("--rounds", type=int, default=2, help="of both sides in turn")
    parser.add_argument("--repeats", type=int, default=3, help="saves and loads of each side in a round")
    parser.add_argument("--gib", type=float, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dir", default="runs/peers-checkpoint")
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--variants", default="save,async,async staged,async process,bytecheckpoint,bytecheckpoint fast",
                        help="of DCP: save, async, async staged, async process; bytecheckpoint, bytecheckpoint fast")
    arguments = parser.parse_args()
    os.makedirs(arguments.dir, exist_ok=True)
    listed = subprocess.run([arguments.ashlar, "bench", "checkpoint", "--list", "--gib", str(arguments.gib), "--ranks",
                             str(arguments.ranks)], check=True, stdout=subprocess.PIPE, text=True).stdout
    states = {state["workload"]: state for state in map(json.loads, listed.splitlines())}
    print("torch %s, %s, %s; medians over %d x %d" % (
        torch.__version__, "not waiting for the disk" if arguments.no_sync else "on disk",
        "%.3g GiB" % arguments.gib, arguments.rounds, arguments.repeats))
    arguments.variants = arguments.variants.split(",")
    if any(name.startswith("bytecheckpoint") for name in arguments.variants):
        reason = make_bytecheckpoint()
        print("bytecheckpoint 0.0.2: %s" % (reason or "runs, with the PyTorch that it asks for"))
        if reason:
            arguments.variants = [name for name in arguments.variants if not name.startswith("bytecheckpoint")]
    print("%-8s %-20s %10s %9s %9s %9s %6s" % ("state", "", "block ms", "save s", "load s", "other s", "files"))
    for workload in arguments.workload.split(","):
        compare(arguments, states[workload])
    shutil.rmtree(arguments.dir, ignore_errors=True)


def compare(arguments, state):
    variants = arguments.variants
    ours, theirs = [], {name: [] for name in variants}
    loads = {name: {"saved": [], "other": []} for name in variants if name in ("save", "bytecheckpoint")}
    port = 29500 + os.getpid() % 400
    for _ in range(arguments.rounds):
        ours.append(run_ashlar(arguments, state["workload"]))
        job = {"tensors": state["tensors"], "directory": arguments.dir, "sync": not arguments.no_sync,
               "rounds": arguments.repeats, "step_s": arguments.step_seconds}
        for name in variants:  # in processes of its own, so that one that fails takes no other with it
            port += 1
            shutil.rmtree(os.path.join(arguments.dir, "peer"), ignore_errors=True)
            theirs[name].append(run_peer(name, state["saved"]["ranks"], dict(
                job, kind="save", variant=name, layout=state["saved"], port=port)))
            if name not in loads or "error" in theirs[name][-1]:
                continue
            for layout, outs in loads[name].items():
                port += 1
                outs.append(run_peer(name, state[layout]["ranks"], dict(
                    job, kind="load", variant=name, layout=state[layout], port=port)))
        shutil.rmtree(os.path.join(arguments.dir, "peer"), ignore_errors=True)
    median = statistics.median
    name = state["workload"]
    ashlar = {"block": median(row["block_s"]["median"] for row in ours),
              "save": median(row["ashlar"]["save_s"]["median"] for row in ours),
              "load": median(row["ashlar"]["load_s"]["median"] for row in ours),
              "other": median(row["ashlar"]["other_load_s"]["median"] for row in ours)}
    raw = [median(row["raw"][key]["median"] for row in ours) for key in ("write_s", "read_s")]
    first = max(row["first_block_s"] for row in ours)
    print("%-8s %-20s %10s %9.2f %9.2f" % (name, "raw disk", "", raw[0], raw[1]))
    print("%-8s %-20s %10.1f %9.2f %9.2f %9.2f %6d" % (name, "ashlar", 1e3 * ashlar["block"], ashlar["save"],
                                                       ashlar["load"], ashlar["other"], ours[0]["files"]))
    print("%-8s %-20s %10.1f" % (name, "  first save", 1e3 * first))
    for variant, outs_of in loads.items():
        for layout, key in (("saved", "load"), ("other", "other")):
            label = (title(variant).removesuffix(" save")) + " " + key
            errors = [out["error"] for out in outs_of[layout] if "error" in out]
            if errors:
                print("%-8s %-20s failed: %s" % (name, label, errors[0].strip().splitlines()[-1]))
            elif outs_of[layout]:
                seconds = median(seconds for out in outs_of[layout] for seconds in out["load"])
                print("%-8s %-20s %30.2f s   %.2fx%s" % (
                    name, label, seconds, seconds / ashlar[key],
                    "  (ceiling %.2fx)" % (seconds / raw[1]) if key == "load" else ""))
    for variant, rounds in theirs.items():
        errors = [out["error"] for out in rounds if "error" in out]
        if errors:
            print("%-8s %-20s failed: %s" % (name, title(variant), errors[0].strip().splitlines()[-1]))
            continue
        block = median(seconds for out in rounds for seconds in out["block"])
        save = median(seconds for out in rounds for seconds in out["save"])
        print("%-8s %-20s %10.1f %9.2f %29d   block %.0fx  save %.2fx  (ceiling %.2fx)" % (
            name, title(variant), 1e3 * block, save, rounds[0]["files"], block / ashlar["block"],
            save / ashlar["save"], save / raw[0]))
    sys.stdout.flush()


def title(variant):
    return variant if variant.startswith("bytecheckpoint") else "DCP " + variant


if __name__ == "__main__":
    if sys.argv[1:] == ["--job"]:
        print(json.dumps(run_ranks(*json.load(sys.stdin))))
    else:
        main()
