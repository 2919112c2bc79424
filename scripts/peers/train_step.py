#!/usr/bin/env python3
"""Tokens per second of one training step: Ashlar against Hugging Face transformers on PyTorch.

ZAYA1 (nano, small) against ZayaForCausalLM, a dense model (llama-nano) against LlamaForCausalLM, a mixture with a
linear router (moe-nano) against Qwen3MoeForCausalLM, gated DeltaNet with softmax attention (hybrid-nano) against
Qwen3NextForCausalLM.  Both run in alternation within one run: a few PyTorch steps, then
a short Ashlar run, again and again, so that a machine whose speed drifts drifts for both.  PyTorch takes its best
variant: eager or compiled; fused or foreach AdamW; grouped_mm, batched_mm or eager experts; and

  fp32            everything
  bf16 products   weights and activations in fp32, of which products may round their operands to bf16
  bf16 autocast   weights and AdamW in fp32
  bf16 weights    weights, activations, gradients and AdamW's moments in bf16

Ashlar runs the same shapes like for like (AdamW for every parameter, a row is one sequence), then with its defaults:
documents kept apart, and Muon.  llama-nano, moe-nano and hybrid-nano compare fp32 with the best of fp32 and bf16 with
the best of bf16.  hybrid-nano gets the output gate and the zero-centred norms that Qwen3-Next has.  Both have the same number of parameters, or nothing is measured.  The balancing loss of moe-nano is on or off in
both (--aux-loss); transformers takes one loss of all mixtures, so that its coefficient is the recipe's times their
number (docs/recipes.md).

Run by scripts/peers/train_step.sh, which makes the virtual environment.
"""
import argparse
import gc
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROPE = {"rope_type": "default", "rope_theta": 1e4}
ZAYA_ROPE = {"hybrid": ROPE | {"partial_rotary_factor": 0.5}}
# What AutoConfig is told, and the tokens of a step.
SHAPES = {
    "nano": dict(model_type="zaya", rope_parameters=ZAYA_ROPE, layer_types=["hybrid"] * 6, vocab_size=8192,
                 hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                 num_experts=8, moe_intermediate_size=512, router_hidden_size=64, batch=4, tokens=512),
    "small": dict(model_type="zaya", rope_parameters=ZAYA_ROPE, layer_types=["hybrid"] * 12, vocab_size=32768,
                  hidden_size=768, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
                  num_experts=16, moe_intermediate_size=768, router_hidden_size=256, batch=1, tokens=1024),
    "llama-nano": dict(model_type="llama", rope_parameters=ROPE, vocab_size=8192, hidden_size=512,
                       num_hidden_layers=7, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                       intermediate_size=1408, tie_word_embeddings=True, rms_norm_eps=1e-5, batch=4, tokens=512),
    "moe-nano": dict(model_type="qwen3_moe", rope_parameters=ROPE, vocab_size=8192, hidden_size=512,
                     num_hidden_layers=7, num_attention_heads=8, num_key_value_heads=4, head_dim=64, num_experts=8,
                     num_experts_per_tok=2, norm_topk_prob=True, moe_intermediate_size=704, tie_word_embeddings=True,
                     rms_norm_eps=1e-6, output_router_logits=True, router_aux_loss_coef=7 * 0.01, batch=4, tokens=512),
    # Every block has a dense feed-forward; what is said of experts is not used.
    "hybrid-nano": dict(model_type="qwen3_next", rope_parameters=ROPE | {"partial_rotary_factor": 1.0},
                        partial_rotary_factor=1.0, vocab_size=8192, hidden_size=512, num_hidden_layers=8,
                        num_attention_heads=8, num_key_value_heads=4, head_dim=64, intermediate_size=1280,
                        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
                        mlp_only_layers=list(range(8)), linear_num_key_heads=4, linear_num_value_heads=8,
                        linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4,
                        tie_word_embeddings=True, batch=4, tokens=512),
}
STEPS = {"nano": 20, "small": 5, "llama-nano": 20, "moe-nano": 20, "hybrid-nano": 20}  # of an Ashlar run
# What the recipe lacks of the peer's model, in every row.
MODEL_KEYS = {"hybrid-nano": ["model.attention_output_gate=true", "model.zero_centered_norm=true"]}

APART = "data.document_reset=true"
ONE = "data.document_reset=false"
ADAMW = "optim.matrices=adamw"
# What each row of the comparison changes in the recipe, and the PyTorch variants whose best it is compared with.
ZAYA_ROWS = {
    "adamw": ("", [ADAMW, ONE]),
    "adamw, documents apart": ("", [ADAMW, APART]),
    "muon, documents apart": ("", ["optim.matrices=muon", APART]),
}
PRECISION_ROWS = {
    "adamw, fp32": ("fp32", [ADAMW, ONE, "train.precision=fp32"]),
    "adamw, bf16": ("bf16", [ADAMW, ONE, "train.precision=bf16"]),
    "adamw, documents apart": ("", [ADAMW, APART]),
    "muon, documents apart": ("", ["optim.matrices=muon", APART]),
}
# Newton-Schulz of 385 M parameters is meant for larger batches.
ROWS = {"nano": ZAYA_ROWS, "small": {k: v for k, v in ZAYA_ROWS.items() if "muon" not in k},
        "llama-nano": PRECISION_ROWS, "moe-nano": PRECISION_ROWS, "hybrid-nano": PRECISION_ROWS}


class Variant(NamedTuple):
    precision: str
    compiled: bool
    experts: str  # "": a dense model
    optimizer: str

    def __str__(self):
        return ", ".join(filter(None, (self.precision + " compiled" * self.compiled, self.experts, self.optimizer)))


def make_model(shape, experts):
    config = AutoConfig.for_model(**{k: v for k, v in shape.items() if k not in ("batch", "tokens", "attention")})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=shape["attention"])
    if experts:
        model.set_experts_implementation(experts)
    return model


def check_parameters(binary, recipe, shape, keys):
    """Ends the program unless both models have the same number of parameters."""
    with torch.device("meta"):
        theirs = sum(p.numel() for p in make_model(shape, "").parameters())
    plan = subprocess.run([binary, "plan", "dry-run", recipe, *keys, "--json"], capture_output=True, text=True, check=True)
    ours = json.loads(plan.stdout)["model"]["parameters"]
    if ours != theirs:
        sys.exit(f"{recipe} has {ours} parameters, PyTorch's model {theirs}; the shapes of train_step.py and the "
                 f"recipe must state the same model")


def check_memory(shape, variant):
    """batched_mm keeps a copy of an expert's weights for every choice of a token, in every block, until backward."""
    choices = shape["batch"] * shape["tokens"] * shape.get("num_experts_per_tok", 1)
    weights = 3 * shape["hidden_size"] * shape.get("moe_intermediate_size", 0)
    size = 4 if variant.precision in ("fp32", "bf16 products") else 2
    needed = choices * weights * shape["num_hidden_layers"] * size
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if variant.experts == "batched_mm" and needed > memory:
        raise MemoryError(f"copies of weights take {needed / 1e9:.0f} GB, the machine has {memory / 1e9:.0f}")


class Peer:
    """One PyTorch variant, ready to run steps."""

    def __init__(self, shape, variant):
        torch.manual_seed(0)
        self.model = make_model(shape, variant.experts)
        if variant.precision == "bf16 weights":
            self.model = self.model.to(torch.bfloat16)
        self.precision = variant.precision
        self.ids = torch.randint(1, shape["vocab_size"], (shape["batch"], shape["tokens"]))
        self.forward = torch.compile(self.model) if variant.compiled else self.model
        self.use(variant)
        start = time.perf_counter()
        self.step()
        self.first_step_s = time.perf_counter() - start
        self.step()

    def use(self, variant):
        """Only the optimizer is another."""
        self.variant = variant
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           **{variant.optimizer: True})

    def step(self):
        torch.set_float32_matmul_precision("medium" if self.precision == "bf16 products" else "highest")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16 autocast"):
            loss = self.forward(input_ids=self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def tokens_per_second(self, steps=2, seconds=0.0):
        """Of the median step of at least so many, and for at least so long."""
        times = []
        while len(times) < steps or sum(times) < seconds:
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return self.ids.numel() / statistics.median(times)


def cpu_s():
    """CPU seconds of all programs since the machine started, less those of this one and its children."""
    ticks = [int(word) for word in open("/proc/stat").readline().split()[1:]]
    return sum(ticks[:3] + ticks[5:8]) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def undisturbed(measure, tries):
    """What measure() returns of a time in which other programs took less than 5 % of the CPUs, if there is one among
    so many tries; each further try waits a little."""
    for attempt in range(tries):
        start, others = time.perf_counter(), cpu_s()
        result = measure()
        share = (cpu_s() - others) / (time.perf_counter() - start) / os.cpu_count()
        if share < 0.05:
            return result
        if attempt + 1 < tries:
            time.sleep(10)
    print(f"  the next line is disturbed: other programs took {100 * share:.0f} % of the CPUs", flush=True)
    return result


def keep(args, **what):
    """Appends a line to the file of raw results."""
    if args.raw:
        with open(args.raw, "a") as file:
            file.write(json.dumps({"model": args.model, "torch": torch.__version__, "time": time.time(),
                                   "load": os.getloadavg()[0], **what}) + "\n")


def best_variants(shape, kinds, args):
    """The fastest variant of each kind, which its precision begins with.  One is in memory at a time."""
    rates = {}
    precisions = ("fp32", "bf16 products", "bf16 autocast", "bf16 weights")
    experts = ("grouped_mm", "batched_mm", "eager") if "num_experts" in shape else ("",)
    for compiled, precision, expert in itertools.product((False, True), precisions, experts):
        peer = None
        for optimizer in ("fused", "foreach"):
            variant = Variant(precision, compiled, expert, optimizer)
            if not any(text in str(variant) for text in args.only or [""]):
                continue
            try:
                check_memory(shape, variant)
                peer = peer or Peer(shape, variant)
                peer.use(variant)
                peer.step()
                rates[variant] = undisturbed(lambda: peer.tokens_per_second(seconds=args.seconds), args.tries)
                keep(args, variant=str(variant), tokens_per_s=rates[variant], first_step_s=peer.first_step_s)
                print(f"  PyTorch {str(variant):<44} {rates[variant]:8.0f} tokens/s  "
                      f"(first step {peer.first_step_s:.1f} s)", flush=True)
            except Exception as error:  # a variant that this PyTorch cannot run is reported, not hidden
                print(f"  PyTorch {str(variant):<44} failed: {(str(error).splitlines() or [repr(error)])[0][:90]}",
                      flush=True)
        del peer
        gc.collect()
        torch.compiler.reset()  # what was compiled for one variant counts towards the limit of the next
    return {kind: max((v for v in rates if v.precision.startswith(kind)), key=rates.get, default=None)
            for kind in kinds}


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
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--model", choices=SHAPES, default="nano")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="time given to each PyTorch variant at first")
    parser.add_argument("--only", action="append", help="only PyTorch variants whose name holds this; may be given "
                        "several times")
    parser.add_argument("--rows", help="only these rows of the comparison, with semicolons")
    parser.add_argument("--raw", help="append every rate and round to this file, a JSON line each")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa", help="PyTorch's attention")
    parser.add_argument("--aux-loss", choices=("on", "off"), default="on", help="of moe-nano, in both programs")
    parser.add_argument("--tries", type=int, default=60, help="how often a disturbed time is measured at most")
    args = parser.parse_args()
    rows, steps = ROWS[args.model], STEPS[args.model]
    shape = SHAPES[args.model] | {"attention": args.attention}
    # A block that records its router's logits is compiled once for each number of logits before it; past the limit,
    # which is 8 where nothing is said, PyTorch goes on uncompiled.
    torch._dynamo.config.recompile_limit = 64
    if args.aux_loss == "off" and "router_aux_loss_coef" in shape:
        shape |= {"output_router_logits": False, "router_aux_loss_coef": 0.0}
        rows = {row: (kind, [*keys, "moe.router_aux_loss_coef=0"]) for row, (kind, keys) in rows.items()}
    if args.rows:
        chosen = [row.strip() for row in args.rows.split(";")]
        if unknown := set(chosen) - set(rows):
            sys.exit(f"--rows has {', '.join(sorted(unknown))}; expected some of: {'; '.join(rows)}")
        rows = {row: rows[row] for row in chosen}
    model_keys = MODEL_KEYS.get(args.model, [])
    check_parameters(args.ashlar, args.recipe, shape, model_keys)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(f"{args.model}: {shape['batch']} x {shape['tokens']} tokens a step, PyTorch {torch.__version__}, "
          f"{torch.get_num_threads()} threads; load {os.getloadavg()[0]:.2f}", flush=True)
    best = best_variants(shape, {kind for kind, _ in rows.values()}, args)
    peers = {variant: Peer(shape, variant) for variant in set(best.values()) if variant}
    if not peers:
        sys.exit("no PyTorch variant ran")
    pairs = {row: [] for row, (kind, _) in rows.items() if best[kind]}
    for number in range(args.rounds):
        for row in pairs:
            kind, overrides = rows[row]
            theirs, ours = undisturbed(lambda: (
                peers[best[kind]].tokens_per_second(max(2, steps // 2)),
                ashlar_rate(args.ashlar, args.recipe, shape, args.data, steps, model_keys + overrides)), args.tries)
            pairs[row].append((theirs, ours))
            keep(args, round=number, row=row, variant=str(best[kind]), theirs=theirs, ours=ours)
            print(f"  round {number} (load {os.getloadavg()[0]:.2f}): PyTorch ({best[kind]}) {theirs:8.0f}, "
                  f"Ashlar ({row}) {ours:8.0f} tokens/s, ratio {ours / theirs:.2f}", flush=True)
    for row, measured in pairs.items():
        ratios = [ours / theirs for theirs, ours in measured]
        print(f"{args.model}, Ashlar ({row}) against PyTorch ({best[rows[row][0]]}): median ratio "
              f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), PyTorch "
              f"{statistics.median(t for t, _ in measured):.0f}, Ashlar "
              f"{statistics.median(o for _, o in measured):.0f} tokens/s")


if __name__ == "__main__":
    main()
