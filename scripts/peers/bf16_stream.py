#!/usr/bin/env python3
"""How far from fp64 a step in bf16 is: Ashlar with a residual stream in bf16 and in fp32, and transformers with its
weights in bf16.

One set of weights, each a bf16 number, and the same rows: the loss of a step and its gradient with respect to every
tensor, against transformers in fp64.  Ashlar's gradients are the first moments of AdamW after one step without clipping.
An error is relative, in the Frobenius norm.  Ashlar's gradients together must be at most as far from fp64 as those of
transformers in bf16, and so must its worst tensor; exit code 1 otherwise.  (A loss is a mean, whose errors cancel.)
What it found: docs/bench/tsp.md.

Run by scripts/peers/bf16_stream.sh, which makes the virtual environment.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from torch.nn.functional import cross_entropy

from hf_parity import ROOT, Ashlar
from step_files import read_component
from train_parity import BATCH, FAMILIES, LENGTH, MICRO_BATCH, OPTIM, SEED, computing_in, read_rows, write_recipe

DENSE = ("Llama", "Qwen3")


def torch_step(model, rows):
    """Loss, and gradients by name."""
    loss = 0.0
    for part in rows.split(MICRO_BATCH):
        logits = model(input_ids=part[:, :-1], use_cache=False).logits
        micro = cross_entropy(logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
                              part[:, 1:].flatten(), reduction="sum") / (BATCH * LENGTH)
        micro.backward()
        loss += micro.item()
    return loss, {name: p.grad.double() for name, p in model.named_parameters()}


def ashlar_step(ashlar, work, stream):
    run = work / f"run-{stream}"
    ashlar.run("train", work / "recipe.toml", f"train.run_dir={run}", f"init.model={work / 'saved'}", "train.steps=1",
               "optim.matrices=adamw", "optim.clip_norm=0", "optim.warmup_steps=0", "checkpoint.every=0",
               "train.precision=bf16", f"train.stream={stream}")
    row = next(json.loads(line) for line in open(run / "metrics.jsonl") if '"loss"' in line)
    step = next((run / "checkpoints").glob("step-*"))
    return row["loss"], moments(step)


def moments(step):
    """Gradients by name: the first moment after one step is (1 - beta1) of it."""
    prefix = "optim.exp_avg."
    return {name.removeprefix(prefix): torch.from_numpy(array.copy()).double() / (1 - OPTIM["beta1"])
            for name, (_, array) in read_component(step / "optim").items() if name.startswith(prefix)}


def error_of(got, want):
    return ((got - want).norm() / want.norm()).item()


def errors(step, exact):
    """Of the loss, of all gradients together and of the worst tensor, with its name."""
    (loss, gradients), (true_loss, true) = step, exact
    all_got = torch.cat([gradients[name].flatten() for name in true])
    all_true = torch.cat([t.flatten() for t in true.values()])
    worst = max(true, key=lambda name: error_of(gradients[name], true[name]))
    return abs(loss - true_loss) / true_loss, error_of(all_got, all_true), error_of(gradients[worst], true[worst]), worst


def compare(ashlar, scratch, family):
    rows = read_rows(scratch / "text")[0]
    with tempfile.TemporaryDirectory(dir=scratch) as work:
        work = pathlib.Path(work)
        torch.manual_seed(SEED)
        model, sizes = FAMILIES[family]()
        model.to(torch.bfloat16).save_pretrained(work / "saved")
        write_recipe(work / "recipe.toml", sizes, scratch / "text")
        with computing_in("fp64"):
            torch.manual_seed(SEED)
            exact_model = FAMILIES[family]()[0].to(torch.float64)
            exact_model.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            exact = torch_step(exact_model, rows)
        errors_of = {"transformers, bf16 weights": errors(torch_step(model, rows), exact)}
        for stream in ("bf16", "fp32"):
            errors_of[f"Ashlar, {stream} stream"] = errors(ashlar_step(ashlar, work, stream), exact)
    for who, (loss, together, worst, name) in errors_of.items():
        print(f"{family:8} {who:28} loss {loss:8.1e}  gradients {together:8.1e}  worst {worst:8.1e}  {name}")
    theirs, ours = errors_of["transformers, bf16 weights"], errors_of["Ashlar, bf16 stream"]
    return all(a <= b for a, b in zip(ours[1:3], theirs[1:3]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True, help="the ashlar binary")
    args = parser.parse_args()
    torch.set_num_threads(1)  # tiny models
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ashlar = Ashlar(args.ashlar)
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}; a step of {BATCH} x {LENGTH} tokens")
    with tempfile.TemporaryDirectory(prefix="ashlar_stream_") as scratch:
        scratch = pathlib.Path(scratch)
        ashlar.run("data", "prepare", "--input", ROOT / "tests/fixtures/vectors/stones.txt", "--documents",
                   "blank-line", "--tokenizer", "byte", "--out", scratch / "text")
        passed = [compare(ashlar, scratch, family) for family in DENSE]
    print(f"{sum(passed)} of {len(passed)} families: Ashlar is at most as far from fp64")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
