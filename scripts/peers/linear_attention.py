#!/usr/bin/env python3
"""Time of linear attention's recurrence, forward and backward: Ashlar against Hugging Face transformers on PyTorch.

  head decay   the loop over blocks of MiniMaxLightningAttention, whose projections, norm and gate are left out
  delta        torch_chunk_gated_delta_rule of Qwen3-Next, at the sizes of `ashlar bench linear-attention`

Both run in alternation within one run: some repeats of every PyTorch variant, then `ashlar bench linear-attention`,
again and again, so that a machine whose speed drifts drifts for both.  PyTorch takes its best variant: eager or
compiled; fp32; bf16 inputs; for the delta rule, which computes in fp32 whatever its inputs are, also with products
that may round their operands to bf16.

Run by scripts/peers/linear_attention.sh, which makes the virtual environment.
"""
import argparse
import collections
import itertools
import json
import statistics
import subprocess
import time

import torch
from transformers import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Identity(torch.nn.Module):
    def forward(self, x):
        return x


class Open(torch.nn.Module):
    """A gate whose sigmoid is 1, broadcast."""

    def forward(self, x):
        return torch.full((1,), 100.0, dtype=x.dtype)


class HeadDecay:
    """MiniMaxLightningAttention on q, k, v that its projection would have made."""

    def __init__(self, shape, dtype, compiled):
        heads, width = shape["value_heads"], shape["dk"]
        config = MiniMaxConfig(hidden_size=3 * heads * width, num_attention_heads=heads, num_key_value_heads=heads,
                               head_dim=width, num_hidden_layers=2,
                               layer_types=["linear_attention", "full_attention"])
        with torch.device("meta"):  # its weights are not needed
            layer = MiniMaxLightningAttention(config, 0)
        slopes = layer.get_slope_rate(device="cpu")
        factors = layer.decay_factors(slopes)
        layer.qkv_proj = layer.norm = layer.out_proj = layer.act_fn = Identity()
        layer.output_gate = Open()
        for name, value in zip(("slope_rate", "query_decay", "key_decay", "diagonal_decay"), (slopes, *factors)):
            setattr(layer, name, torch.nn.Buffer(value.to(dtype)))
        self.layer = torch.compile(layer) if compiled else layer
        self.qkv = torch.randn(1, shape["tokens"], 3 * heads * width).mul_(0.1).to(dtype).requires_grad_()
        self.gradient = torch.randn(1, shape["tokens"], heads * width).to(dtype)

    def step(self):
        self.qkv.grad = None
        self.layer(self.qkv, None, None)[0].backward(self.gradient)


class Delta:
    def __init__(self, shape, dtype, compiled):
        tokens, K, H = shape["tokens"], shape["key_heads"], shape["value_heads"]
        make = lambda *size: torch.randn(1, tokens, *size)
        unit = lambda x: torch.nn.functional.normalize(x, dim=-1)
        inputs = [unit(make(K, shape["dk"])), unit(make(K, shape["dk"])), make(H, shape["dv"]), -make(H).abs() * 0.1,
                  make(H).sigmoid()]
        self.inputs = [x.to(dtype).requires_grad_() for x in inputs]
        self.gradient = make(H, shape["dv"]).to(dtype)
        self.rule = torch.compile(torch_chunk_gated_delta_rule) if compiled else torch_chunk_gated_delta_rule

    def step(self):
        for x in self.inputs:
            x.grad = None
        self.rule(*self.inputs)[0].backward(self.gradient)


class Variant:
    def __init__(self, kind, shape, dtype, products, compiled):
        self.name = f"{dtype}{products}{' compiled' if compiled else ''}"
        self.dtype, self.precision = dtype, "medium" if products else "highest"
        self.case = (Delta if "delta" in kind else HeadDecay)(shape, DTYPES[dtype], compiled)
        first = self.seconds(1)
        print(f"  {kind:<12} PyTorch {self.name:<30} {self.seconds(1) * 1e3:9.1f}  (first time {first:.1f} s)", flush=True)

    def seconds(self, repeats, at_least_s=0.0):
        """Of the median step."""
        torch.set_float32_matmul_precision(self.precision)
        times = []
        while len(times) < repeats or sum(times) < at_least_s:
            start = time.perf_counter()
            self.case.step()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def ashlar_rows(args, dtype):
    """Name of a recurrence -> its sizes, with seconds of forward and backward together."""
    command = [args.ashlar, "bench", "linear-attention", "--json", "--dtype", dtype, "--tokens", str(args.tokens),
               "--threads", str(args.threads)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    rows = {}
    for row in report["recurrences"]:
        entry = rows.setdefault(row["recurrence"], dict(row, seconds=0.0, flop=0.0))
        entry["seconds"] += row["median_s"]
        entry["flop"] += row["flop"]
    return rows, report


def variants_of(kind, shape, args):
    for dtype, compiled in itertools.product(DTYPES, (False, True)):
        for products in ("", ", bf16 products") if "delta" in kind and dtype == "bf16" else ("",):
            if not (args.eager_only and compiled):
                yield Variant(kind, shape, dtype, products, compiled)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="of a variant in a round")
    parser.add_argument("--only", default="", help="recurrences whose name has this word")
    parser.add_argument("--eager-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch._dynamo.config.recompile_limit = 64

    shapes, report = ashlar_rows(args, "fp32")
    print(f"{report['isa']}, {report['threads']} threads, {args.tokens} tokens, PyTorch {torch.__version__}; "
          f"ms of forward and backward; one repeat of each variant, then medians of {args.rounds} rounds", flush=True)
    kinds = [k for k in ("head decay", "delta", "delta 128") if args.only in k]
    peers = {kind: list(variants_of(kind, shapes[kind], args)) for kind in kinds}
    theirs, ours = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(args.rounds):
        for kind, variants in peers.items():
            for variant in variants:
                theirs[kind, variant.dtype, variant.name].append(variant.seconds(1, args.seconds))
        for dtype in DTYPES:
            rows, _ = ashlar_rows(args, dtype)
            for kind in kinds:
                ours[kind, dtype].append(rows[kind]["seconds"])
    for kind, dtype in itertools.product(kinds, DTYPES):
        medians = {name: statistics.median(s) for (k, d, name), s in theirs.items() if (k, d) == (kind, dtype)}
        for name, seconds in medians.items():
            print(f"  {kind:<12} PyTorch {name:<30} {seconds * 1e3:9.1f}")
        mine, best = statistics.median(ours[kind, dtype]), min(medians.values())
        print(f"  {kind:<12} Ashlar  {dtype:<30} {mine * 1e3:9.1f}   {best / mine:.1f} times as fast as the best")


if __name__ == "__main__":
    main()
