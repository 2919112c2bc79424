#!/usr/bin/env python3
"""`ashlar ckpt diff` and `ckpt average` against NumPy, which reads the files of the steps itself (step_files.py).

  diff     of pairs of steps of one run and of two, in several layouts, every component, and of a step and its export in
           bf16: number of elements that differ, those that are not finite, the largest difference, the exit code
  average  of one, two and three steps with several weights, as a root and as a Hugging Face directory in fp32 and bf16:
           every bit

One line per check; exit code 1 if one fails.  Needs NumPy:

  scripts/peers/checkpoint_tools.py --ashlar build/release/ashlar
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy

from step_files import LAYOUTS, Ashlar, read_component

COMPONENTS = ("model", "optim", "loader")
failed = count = 0


def line(name, ok, details):
    global failed, count
    count += 1
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'}  {name:<52} {details}", flush=True)


def values(tensor):
    """In fp64, bf16 by its bits."""
    dtype, array = tensor
    if dtype == "BF16":
        array = (array.astype(numpy.uint32) << 16).view(numpy.float32)
    return array.astype(numpy.float64)


def to_bf16(array):
    """fp64 to the nearest bf16, ties to even, in one rounding: the fp32 on the way is cut off, and odd if inexact."""
    single = array.astype(numpy.float32)
    bits = single.view(numpy.uint32) - (abs(single.astype(numpy.float64)) > abs(array))
    bits = (bits | (single.astype(numpy.float64) != array)).astype(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def difference(a, b):
    x, y = values(a), values(b)
    if a[0] == b[0]:
        size = a[1].dtype.itemsize
        bits = [numpy.ascontiguousarray(t[1]).reshape(-1).view(f"u{size}") for t in (a, b)]
        differ = (bits[0] != bits[1]).reshape(x.shape)
    else:
        differ = ~((x == y) | (numpy.isnan(x) & numpy.isnan(y)))
    finite = differ & numpy.isfinite(x) & numpy.isfinite(y)
    return {"differing": int(differ.sum()), "not_finite": int((differ & ~finite).sum()),
            "max_abs": float(abs(x - y)[finite].max(initial=0.0))}


def check_diff(ashlar, name, a, b, read_a, read_b):
    rows = json.loads(ashlar.run("ckpt", "diff", a, b, "--values", "--json", codes=(0, 1)))
    found = {row["name"]: row["values"] for row in rows["tensors"]}
    expected = {tensor: difference(read_a[tensor], read_b[tensor]) for tensor in read_a.keys() & read_b.keys()}
    wrong = [tensor for tensor in expected if found.get(tensor) != expected[tensor]]
    equal = all(row["differing"] == 0 for row in expected.values()) and read_a.keys() == read_b.keys() and all(
        read_a[tensor][0] == read_b[tensor][0] for tensor in read_a)
    ok = not wrong and found.keys() == read_a.keys() | read_b.keys() and rows["equal"] == equal
    differing = sum(row["differing"] for row in expected.values())
    line("diff " + name, ok, f"{len(expected)} tensors, {differing} elements differ" if ok else f"{wrong[:3]}")


def check_average(ashlar, scratch, name, steps, weights, models):
    out = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    words = ["ckpt", "average", *steps, "--weights", ",".join(map(str, weights))]
    ashlar.run(*words, "--out", out / "root")
    ashlar.run(*words, "--out", out / "fp32", "--to", "hf", "--dtype", "fp32")
    ashlar.run(*words, "--out", out / "bf16", "--to", "hf")
    root = read_component(next((out / "root").glob("step-*/model")))
    fp32, bf16 = read_component(out / "fp32"), read_component(out / "bf16")
    total = 0.0
    for weight in weights:
        total += weight
    wrong = []
    for tensor in root:
        terms = [weight * values(model[tensor]) for weight, model in zip(weights, models)]
        mean = terms[0]
        for term in terms[1:]:
            mean = mean + term
        mean = mean / total
        single = mean.astype(numpy.float32)
        if root[tensor][1].tobytes() != single.tobytes() or fp32[tensor][1].tobytes() != single.tobytes():
            wrong.append(tensor)
        if bf16[tensor][0] == "BF16" and bf16[tensor][1].tobytes() != to_bf16(mean).tobytes():
            wrong.append(tensor + " in bf16")
    line("average " + name, not wrong and root.keys() == models[0].keys(), f"{len(root)} tensors" if not wrong else
         f"{wrong[:3]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ashlar = Ashlar(args.ashlar, scratch)
        ashlar.prepare_text()
        runs = {}
        for name, (ranks, overrides) in LAYOUTS.items():
            if "hybrid" in name:
                continue
            steps = ashlar.train(name, ranks, overrides)
            runs[name] = [(step, {component: read_component(step / component) for component in COMPONENTS})
                          for step in steps]

        def all_of(read):
            return {tensor: value for component in COMPONENTS for tensor, value in read[component].items()}

        one = runs["1 rank"]
        for name, steps in runs.items():
            check_diff(ashlar, f"of two steps, {name}", steps[0][0], steps[1][0], all_of(steps[0][1]),
                       all_of(steps[1][1]))
            if steps is not one:
                check_diff(ashlar, f"1 rank and {name}", one[1][0], steps[1][0], all_of(one[1][1]),
                           all_of(steps[1][1]))
        ashlar.run("ckpt", "export", one[1][0], "hf")
        check_diff(ashlar, "of a step and its export in bf16", one[1][0], "hf", one[1][1]["model"],
                   read_component(pathlib.Path(scratch) / "hf"))
        tp, bucketed = runs["tp 2, dp 2"], runs["2 ranks, bucketed"]
        for name, chosen, weights in (("of one step", [tp[1]], [0.3]),
                                      ("of two steps", [one[0], one[1]], [1, 1]),
                                      ("of three layouts", [one[1], tp[1], bucketed[0]], [0.5, 1.25, 3]),
                                      ("with a negative weight", [bucketed[1], one[0]], [1.5, -0.5])):
            check_average(ashlar, scratch, name, [step for step, _ in chosen], weights,
                          [read["model"] for _, read in chosen])
    print(f"{count - failed} of {count} checks passed")
    sys.exit(failed != 0)


main()
