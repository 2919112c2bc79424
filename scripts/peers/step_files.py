"""Steps of checkpoints, read with NumPy alone: safetensors headers, and the offsets of shards in their metadata."""
import json
import pathlib
import subprocess
import sys

import numpy

RECIPE = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/recipes/tiny.toml"
TYPES = {"F64": "<f8", "F32": "<f4", "BF16": "<u2", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
         "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "I8": "i1", "BOOL": "u1"}

# name -> (ranks, overrides)
LINEAR = ['model.layer_types=["linear_attention","full_attention"]', "model.linear_recurrence=gated_delta",
          "model.linear_conv_kernel_dim=4", "model.num_experts=0", "model.moe_intermediate_size=0",
          "model.router_hidden_size=0", "model.intermediate_size=40"]
LAYOUTS = {
    "1 rank": (1, []),
    "2 ranks, zero 0": (2, ["parallel.zero=0"]),
    "4 ranks, zero 1": (4, ["parallel.zero=1", "train.global_batch=8"]),
    "3 ranks, zero 3": (3, ["parallel.zero=3", "train.global_batch=6"]),
    "2 ranks, bucketed": (2, ["parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"]),
    "tp 2": (2, ["parallel.tp=2"]),
    "tp 2, dp 2": (4, ["parallel.tp=2"]),
    "cp 2": (2, ["parallel.cp=2"]),
    "ep 2": (2, ["parallel.ep=2"]),
    "pp 2": (2, ["parallel.pp=2"]),
    "hybrid, cp 2": (2, ["parallel.cp=2", *LINEAR]),
    "hybrid, tp 2, zero 2": (4, ["parallel.tp=2", "parallel.zero=2", *LINEAR]),
}


def read_header(path):
    """The header of a safetensors file, and where its data begins."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def read_file(path):
    """name -> (type, array, offsets in the whole tensor, shape of the whole tensor)"""
    header, begin = read_header(path)
    metadata = header.pop("__metadata__", {})
    places = json.loads(metadata.get("DCP_SHARDING_INFO", "{}"))
    wholes = json.loads(metadata.get("ashlar.gshape", "{}"))
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=0)
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = data[begin + first:begin + end].view(TYPES[entry["dtype"]]).reshape(entry["shape"])
        offsets = places[name]["saved_offsets"] if name in places else [0] * array.ndim
        tensors[name] = (entry["dtype"], array, offsets, wholes.get(name, entry["shape"]))
    return tensors


def read_component(directory):
    """name -> (type, whole array): every element from exactly one shard, or an AssertionError."""
    found, counts = {}, {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        for name, (dtype, array, offsets, whole) in read_file(path).items():
            if name not in found:
                found[name] = (dtype, numpy.zeros(whole, array.dtype))
                counts[name] = numpy.zeros(whole, numpy.int8)
            place = tuple(slice(o, o + n) for o, n in zip(offsets, array.shape))
            found[name][1][place] = array
            counts[name][place] += 1
    for name, count in counts.items():
        assert (count == 1).all(), f"{name}: not every element is in exactly one shard"
    return found


class Ashlar:
    def __init__(self, binary, directory):
        self.binary = str(pathlib.Path(binary).resolve())
        self.directory = pathlib.Path(directory)

    def run(self, *words, codes=(0,)):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True, cwd=self.directory)
        if done.returncode not in codes:
            sys.exit(f"ashlar {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def prepare_text(self):
        lines = [f"Line {i} of a text that has {i * i} in it, and {'word ' * (i % 7)}." for i in range(1500)]
        (self.directory / "text.txt").write_text("\n\n".join(lines) + "\n")
        self.run("data", "prepare", "--input", "text.txt", "--documents", "blank-line", "--tokenizer", "byte",
                 "--out", "text")

    def train(self, name, ranks, overrides, steps=4, every=2):
        """The steps of a new run, oldest first."""
        run = name.replace(" ", "-").replace(",", "")
        self.run("train", RECIPE, "--ranks", ranks, "data.train=text", f"train.run_dir={run}", f"train.steps={steps}",
                 f"checkpoint.every={every}", "train.eval_every=0", "train.precision=fp32", *overrides)
        return sorted((self.directory / run / "checkpoints").glob("step-*"))
