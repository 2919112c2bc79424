#!/usr/bin/env python3
"""Makes the steps of this directory with a given program, and records what is in them.

  make.py ASHLAR        every step anew: only for a new version of the format, beside the steps that are here

Each step is the third of a small run.  hashes.json holds, for each, the CRC32C of every tensor (whole, row-major) and of
every extra file, as computed here from the files themselves (scripts/peers/step_files.py): the program takes no part in
it.  `unknown-feature` and `unknown-flag` are the step of one writer with a feature in its manifest, or a flag in its
index, that no program knows, signed anew; they hold no data, since they are refused before it would be read.
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts/peers"))
from step_files import Ashlar, read_component  # noqa: E402

MODEL = ['model.layer_types=["full_attention"]', "model.num_hidden_layers=1", "model.vocab_size=264",
         "model.hidden_size=8", "model.head_dim=4", "model.num_attention_heads=2", "model.num_key_value_heads=2",
         "model.num_experts=0", "model.moe_intermediate_size=0", "model.router_hidden_size=0",
         "model.intermediate_size=12"]
STEPS = {
    "one-writer": (1, []),
    "three-writers": (3, ["parallel.zero=1", "train.global_batch=6", "data.num_streams=3"]),
    "tp": (2, ["parallel.tp=2"]),
    "bucketed": (2, ["parallel.zero_layout=bucketed", "parallel.bucket_bytes=4000"]),
}
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return f"{crc ^ 0xFFFFFFFF:08x}"


def hashes_of(step):
    tensors = {name: {"dtype": dtype, "shape": list(array.shape), "crc32c": crc32c(array.tobytes())}
               for component in ("model", "optim", "loader")
               for name, (dtype, array) in read_component(step / component).items()}
    extra = {path.name: crc32c(path.read_bytes()) for path in sorted((step / "extra").iterdir())}
    return {"tensors": tensors, "extra": extra}


def sign(step):
    """COMMIT of the manifest and the index as they are now."""
    line = json.loads((step / "COMMIT").read_text())
    del line["crc32c"]
    for key, name in (("manifest", "manifest.json"), ("index", "index.bin")):
        data = (step / name).read_bytes()
        line[key] = {"size": len(data), "crc32c": crc32c(data)}
    text = json.dumps(line, separators=(",", ":"))[:-1]
    (step / "COMMIT").write_text(f'{text},"crc32c":"{crc32c(text.encode())}"}}\n')


def without_data(source, target):
    target.mkdir()
    for name in ("COMMIT", "manifest.json", "index.bin"):
        shutil.copy(source / name, target / name)


def main():
    hashes = {}
    with tempfile.TemporaryDirectory() as scratch:
        ashlar = Ashlar(sys.argv[1], scratch)
        ashlar.prepare_text()
        for name, (ranks, overrides) in STEPS.items():
            step = ashlar.train(name, ranks, [*MODEL, *overrides], steps=3, every=3)[-1]
            shutil.rmtree(HERE / name, ignore_errors=True)
            shutil.copytree(step, HERE / name)
            hashes[name] = hashes_of(step)
    (HERE / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")

    for name in ("unknown-feature", "unknown-flag"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        without_data(HERE / "one-writer", HERE / name)
    manifest = HERE / "unknown-feature/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"required_features": ["holograms"]}))
    sign(HERE / "unknown-feature")
    path = HERE / "unknown-flag/index.bin"
    index = bytearray(path.read_bytes())
    struct.pack_into("<Q", index, 24, 1 << 40)  # required flags
    sections, = struct.unpack_from("<I", index, 40)
    struct.pack_into("<I", index, 44, 0)
    struct.pack_into("<I", index, 44, int(crc32c(index[:64 + 32 * sections]), 16))
    path.write_bytes(index)
    sign(HERE / "unknown-flag")


main()
