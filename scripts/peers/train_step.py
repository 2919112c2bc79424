#!/usr/bin/env python3
"""Tokens per second of one training step: Ashlar against ZayaForCausalLM of Hugging Face transformers on PyTorch.

Both run in alternation within one run: a few PyTorch steps, then a short Ashlar run, again and again, so that a
machine whose speed drifts drifts for both.  PyTorch takes its best of {fp32, bf16 autocast, bf16 weights, compiled
fp32, compiled bf16 autocast} x {grouped_mm, eager experts} with fused AdamW.  Ashlar runs the same shapes like for
like (AdamW for every parameter, a row is one sequence), then with its defaults: documents kept apart, and Muon.

Run by scripts/peers/train_step.sh, which makes the virtual environment.
"""
import argparse
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from transformers import ZayaConfig, ZayaForCausalLM

SHAPES = {
    "nano": dict(vocab_size=8192, hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=64, num_experts=8, moe_intermediate_size=512,
                 router_hidden_size=64, batch=4, tokens=512),
    "small": dict(vocab_size=32768, hidden_size=768, num_hidden_layers=12, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=128, num_experts=16, moe_intermediate_size=768,
                  router_hidden_size=256, batch=1, tokens=1024),
}


class Peer:
    """One PyTorch variant, ready to run steps."""

    def __init__(self, shape, precision, experts, compiled):
        config = {k: v for k, v in shape.items() if k not in ("batch", "tokens")}
        config["layer_types"] = ["hybrid"] * shape["num_hidden_layers"]
        config["rope_parameters"] = {
            "hybrid": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
        torch.manual_seed(0)
        self.name = f"{precision}{' compiled' if compiled else ''}, {experts}"
        self.model = ZayaForCausalLM(ZayaConfig(**config))
        self.model.set_experts_implementation(experts)
        if precision == "bf16 weights":
            self.model = self.model.to(torch.bfloat16)
        self.autocast = precision == "bf16 autocast"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)
        self.ids = torch.randint(1, shape["vocab_size"], (shape["batch"], shape["tokens"]))
        self.tokens = shape["batch"] * shape["tokens"]
        self.forward = torch.compile(self.model) if compiled else self.model
        start = time.perf_counter()
        self.step()
        self.first_step_s = time.perf_counter() - start
        self.step()

    def step(self):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.forward(input_ids=self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def tokens_per_second(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        return steps * self.tokens / (time.perf_counter() - start)


def variants(only):
    for precision, compiled in (("fp32", False), ("bf16 autocast", False), ("bf16 weights", False),
                                ("fp32", True), ("bf16 autocast", True)):
        for experts in ("grouped_mm", "eager"):
            label = f"{precision}{' compiled' if compiled else ''}, {experts}"
            if only in label:
                yield label, (precision, experts, compiled)


def best_peer(shape, seconds, only):
    """The fastest variant.  One is in memory at a time: the best is built again at the end."""
    best, best_rate = None, 0.0
    for label, variant in variants(only):
        peer = None
        try:
            peer = Peer(shape, *variant)
            steps, start = 0, time.perf_counter()
            while steps < 2 or time.perf_counter() - start < seconds:
                peer.step()
                steps += 1
            rate = steps * peer.tokens / (time.perf_counter() - start)
            print(f"  PyTorch {label:<36} {rate:8.0f} tokens/s  (first step {peer.first_step_s:.1f} s)", flush=True)
            if rate > best_rate:
                best, best_rate = variant, rate
        except Exception as error:  # a variant that this PyTorch cannot run is reported, not hidden
            print(f"  PyTorch {label:<36} failed: {(str(error).splitlines() or [repr(error)])[0][:90]}", flush=True)
        del peer
        gc.collect()
    return Peer(shape, *best) if best else None


ROWS = {  # what each row of the comparison changes in the recipe
    "adamw": ["optim.matrices=adamw", "data.document_reset=false"],
    "adamw, documents apart": ["optim.matrices=adamw"],
    "muon, documents apart": ["optim.matrices=muon"],
}


def ashlar_rate(binary, recipe, shape, data, steps, overrides):
    """Median tokens/s over the steps of a fresh run, the first two left out; one optimizer step per pass, as PyTorch."""
    with tempfile.TemporaryDirectory() as run_dir:
        done = subprocess.run([binary, "train", recipe, f"data.train={data}", f"train.run_dir={run_dir}",
                               f"data.sequence_length={shape['tokens']}", f"train.micro_batch={shape['batch']}",
                               f"train.global_batch={shape['batch']}", f"train.steps={steps}",
                               "train.eval_every=0", "checkpoint.every=-1", "train.log_every=1", *overrides],
                              capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"ashlar train: exit code {done.returncode}: {done.stderr.strip()}")
        rows = [json.loads(line) for line in open(pathlib.Path(run_dir) / "metrics.jsonl")]
    return statistics.median([row["tokens_per_s"] for row in rows if "tokens_per_s" in row][2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True, help="the ashlar binary")
    parser.add_argument("--data", required=True, help="prefix of a dataset prepared with the recipe's vocabulary")
    parser.add_argument("--model", choices=SHAPES, default="nano")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="time given to each PyTorch variant at first")
    parser.add_argument("--only", default="", help="only PyTorch variants whose name holds this")
    args = parser.parse_args()
    shape = SHAPES[args.model]
    recipe = str(pathlib.Path(__file__).resolve().parents[2] / "recipes" / f"zaya1-{args.model}.toml")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(f"{args.model}: {shape['batch']} x {shape['tokens']} tokens a step, PyTorch {torch.__version__}, "
          f"{torch.get_num_threads()} threads", flush=True)
    peer = best_peer(shape, args.seconds, args.only)
    if peer is None:
        sys.exit("no PyTorch variant ran")
    steps = {"nano": 20, "small": 5}[args.model]
    rows = {row: [] for row in ROWS}
    for round_number in range(args.rounds):
        theirs = peer.tokens_per_second(max(2, steps // 4))
        for row, overrides in ROWS.items():
            if "muon" in row and args.model != "nano":
                continue  # Newton-Schulz of 385 M parameters is meant for larger batches
            ours = ashlar_rate(args.ashlar, recipe, shape, args.data, steps, overrides)
            rows[row].append((theirs, ours))
            print(f"  round {round_number}: PyTorch {theirs:8.0f}, Ashlar ({row}) {ours:8.0f} tokens/s, "
                  f"ratio {ours / theirs:.2f}", flush=True)
    for row, pairs in rows.items():
        if pairs:
            print(f"{args.model}, Ashlar ({row}) against PyTorch ({peer.name}): median ratio "
                  f"{statistics.median(o / t for t, o in pairs):.2f}, PyTorch "
                  f"{statistics.median(t for t, _ in pairs):.0f}, Ashlar {statistics.median(o for _, o in pairs):.0f} tokens/s")


if __name__ == "__main__":
    main()
