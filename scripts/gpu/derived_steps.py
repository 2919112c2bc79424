#!/usr/bin/env python3
"""What a training step asks of a card: calls, launches, bytes and flop in the trace of a dry run for that card, and the
time that follows from them.

    scripts/gpu/derived_steps.py [ASHLAR]      the tables of docs/bench/gpu.md (ASHLAR: build/release/ashlar)

Nothing here was measured on a card.  A call takes the longer of its flop at the rate of its kind and its bytes at the
bandwidth; no two calls overlap, and launches hide behind them.  The rates are in RATES below.
"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

LLAMA = "recipes/llama3-8b.toml"
MODELS = {
    "dense 1.7B": (LLAMA, "model.num_hidden_layers=28 model.hidden_size=2048 model.num_attention_heads=16 "
                   "model.intermediate_size=6144 model.vocab_size=151936 model.tie_word_embeddings=true "
                   "data.sequence_length=4096"),
    "ZAYA1-8B": ("recipes/zaya1-8b.toml", ""),
    "Mixtral-like 8 x 7B": ("recipes/moe-nano.toml", "model.vocab_size=32000 model.hidden_size=4096 "
                            "model.num_hidden_layers=32 model.num_attention_heads=32 model.num_key_value_heads=8 "
                            "model.head_dim=128 model.moe_intermediate_size=14336 model.max_position_embeddings=32768 "
                            "data.sequence_length=4096 optim.matrices=adamw"),
}
TOKENS = (4096, 8192)
# TFLOP/s of dense products, of experts' and of attention forward and backward; TB/s.  H200: assumed from what libraries
# and public kernels reach on Hopper.  MI300X: attention on paper, the rest the same shares of its peaks.
RATES = {
    "h200": {"dense": 700, "experts": 600, "attention_forward": 330, "attention_backward": 200, "bytes": 4.0},
    "mi300x": {"dense": 925, "experts": 793, "attention_forward": 350, "attention_backward": 220, "bytes": 4.4},
}
LAUNCH_US = 2.5
# us a token that other work states as reachable on an H200 (products, rows, head, gradients of weights).
FLOORS = {("dense 1.7B", 4096): (18.5, 2.2, 0.7, 0), ("dense 1.7B", 8192): (18.5, 2.2, 0.7, 0),
          ("ZAYA1-8B", 4096): (15.0, 3.5, 1.2, 2.3), ("ZAYA1-8B", 8192): (15.0, 3.5, 1.2, 0.3)}


def kernels(ashlar, model, tokens, card):
    """The functions of a step in their order, each with what the trace says of it."""
    recipe, keys = MODELS[model]
    sequences = tokens // 4096
    with tempfile.TemporaryDirectory() as directory:
        trace = pathlib.Path(directory) / "trace"
        command = [ashlar, "plan", "dry-run", recipe, *keys.split(), f"train.micro_batch={sequences}",
                   f"train.global_batch={sequences}", "train.recompute=false", "train.precision=bf16", "--device", card,
                   "--trace", str(trace)]
        done = subprocess.run(command, capture_output=True, text=True)
        if not trace.exists():
            sys.exit(f"derived_steps: {' '.join(command)}: {done.stderr.strip()}")
        events = json.loads((trace / "dry-rank-0.json").read_text())["traceEvents"]
    return [(e["name"], e["args"]) for e in events if e.get("cat") == "kernel"]


def kind_of(name, args):
    if args["phase"] in ("optimizer", "gradient norm"):
        return "update"
    if name.startswith(("linear_", "blockdiag_", "grouped_", "attention_")):
        return "products"
    return "head" if name == "cross_entropy" else "rows"


def rate_of(name):
    if name.startswith("attention_"):
        return name
    return "experts" if name.startswith(("grouped_", "blockdiag_")) else "dense"


def derived(calls, rates):
    """us by kind; what products wait for bytes beyond their flop is a kind of its own."""
    us = collections.Counter()
    for name, args in calls:
        kind, by_bytes = kind_of(name, args), args["bytes"] / rates["bytes"] * 1e-6
        by_flop = args["flop"] / rates[rate_of(name)] * 1e-6 if kind == "products" or name == "orthogonalize" else 0
        us[kind] += by_flop if kind == "products" else max(by_flop, by_bytes)
        if kind == "products":
            us["waits for bytes"] += max(0, by_bytes - by_flop)
    return us


def main(ashlar):
    print("| model | tokens | calls | launches | GB | TFLOP | launches at 2.5 us |\n|---|---|---|---|---|---|---|")
    times = []
    for model in MODELS:
        for tokens in TOKENS:
            for card in RATES:
                calls = kernels(ashlar, model, tokens, card)
                step = [call for call in calls if kind_of(*call) != "update"]
                if card == "h200":
                    launches, size, work = (sum(args[key] for _, args in step) for key in ("launches", "bytes", "flop"))
                    print(f"| {model} | {tokens:,} | {len(step):,} | {launches:,} | {size * 1e-9:.1f} | {work * 1e-12:.1f} "
                          f"| {launches * LAUNCH_US * 1e-3:.1f} ms |")
                times.append((model, tokens, card, derived(calls, RATES[card])))
    print("\n| model | tokens | card | products | rows | head | waits for bytes | sum | update, ms | of the floor |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model, tokens, card, us in times:
        parts = [us[kind] / tokens for kind in ("products", "rows", "head", "waits for bytes")]
        floor = FLOORS.get((model, tokens)) if card == "h200" else None
        beside = f"{' + '.join(str(f) for f in floor)} = {sum(floor):.1f}: {sum(parts) / sum(floor):.2f}" if floor else ""
        print(f"| {model} | {tokens:,} | {card} | {' | '.join(f'{p:.1f}' for p in parts)} | {sum(parts):.1f} "
              f"| {us['update'] * 1e-3:.0f} | {beside} |")


main(sys.argv[1] if len(sys.argv) > 1 else "build/release/ashlar")
