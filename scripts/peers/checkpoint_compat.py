#!/usr/bin/env python3
"""Reads the model files of Ashlar's steps, as ranks of many layouts wrote them, with the readers of other programs:

  safe_open       every file of model/ with safetensors, shards put together by the offsets in their metadata
  storage reader  torch.distributed.checkpoint.load with HuggingFaceStorageReader on model/
  consolidate     consolidate_safetensors_files on model/, then safetensors' load_file
  export          `ashlar ckpt export --dtype fp32`, where the model has a Hugging Face form with the same names

and holds every tensor of each against Ashlar's own reading of the step (`ashlar ckpt average` of the one step, which is
that step bit for bit in one file), bit by bit.  Run by scripts/peers/checkpoint_compat.sh.
"""
import argparse
import pathlib
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from step_files import LAYOUTS, Ashlar, read_file

warnings.filterwarnings("ignore")


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


def same(found, expected):
    """'equal', or the first difference."""
    if set(found) != set(expected):
        return f"names differ: {sorted(set(found) ^ set(expected))[:3]}"
    for name, tensor in expected.items():
        if found[name].dtype != tensor.dtype or found[name].shape != tensor.shape:
            return f"{name}: {found[name].dtype} {list(found[name].shape)}"
        if not torch.equal(bits(found[name]), bits(tensor)):
            return f"{name}: other bits"
    return "equal"


def by_safe_open(model, _):
    tensors = {}
    for path in sorted(model.glob("*.safetensors")):
        places = {name: (offsets, whole) for name, (_, _, offsets, whole) in read_file(path).items()}
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                shard = file.get_tensor(name)
                offsets, whole = places[name]
                tensors.setdefault(name, torch.full(whole, float("nan"), dtype=shard.dtype))
                tensors[name][tuple(slice(o, o + n) for o, n in zip(offsets, shard.shape))] = shard
    return tensors


def by_storage_reader(model, _):
    reader = HuggingFaceStorageReader(str(model))
    metadata = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.full(entry.size, float("nan"), dtype=entry.properties.dtype)
               for name, entry in metadata.items()}
    torch.distributed.checkpoint.load(tensors, storage_reader=HuggingFaceStorageReader(str(model)), no_dist=True)
    return tensors


def by_consolidation(model, scratch):
    names = {name for path in model.glob("*.safetensors") for name in read_file(path)}
    out = scratch / "consolidated"
    out.mkdir()
    consolidate_safetensors_files(str(model), str(out), {name: 1 for name in names})
    return {name: tensor for path in out.glob("*.safetensors") for name, tensor in load_file(path).items()}


READERS = {"safe_open": by_safe_open, "storage reader": by_storage_reader, "consolidate": by_consolidation}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", required=True)
    args = parser.parse_args()
    equal = count = 0
    print(f"torch {torch.__version__}")
    print(f"{'layout':<22} {'files':>5} {'tensors':>7}  " + "  ".join(f"{name:<14}" for name in [*READERS, "export"]))
    with tempfile.TemporaryDirectory() as scratch:
        ashlar = Ashlar(args.ashlar, scratch)
        ashlar.prepare_text()
        for name, (ranks, overrides) in LAYOUTS.items():
            step = ashlar.train(name, ranks, overrides)[-1]
            work = pathlib.Path(tempfile.mkdtemp(dir=scratch))
            ashlar.run("ckpt", "average", step, "--out", work / "whole")
            expected = load_file(next((work / "whole").glob("step-*/model/*.safetensors")))
            results = []
            for reader in READERS.values():
                try:
                    results.append(same(reader(step / "model", work), expected))
                except Exception as error:  # whatever the other program throws is the result
                    results.append(f"{type(error).__name__}: {error}")
            if (step / "extra/config.json").exists():
                ashlar.run("ckpt", "export", step, work / "hf", "--dtype", "fp32")
                exported = load_file(work / "hf/model.safetensors")
                results.append(same(exported, expected) if set(exported) == set(expected) else "other names")
            else:
                results.append("no such form")
            files = len(list((step / "model").glob("*.safetensors")))
            print(f"{name:<22} {files:>5} {len(expected):>7}  " + "  ".join(f"{result:<14}" for result in results),
                  flush=True)
            judged = [result for result in results if result not in ("other names", "no such form")]
            count += len(judged)
            equal += judged.count("equal")
    print(f"{equal} of {count} equal")
    sys.exit(equal != count)


main()
