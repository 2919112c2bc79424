#!/usr/bin/env python3
"""Writes the malformed checkpoint files beside this script (they are committed; run it to remake them).

Every checksum is right unless the case is about checksums, so that only the named defect can be refused.
"""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write(name, data):
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(data)


def safetensors(header, data, length=None):
    text = header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def commit(fields, crc=None, tail="\n"):
    line = json.dumps(fields, separators=(",", ":"))[:-1]
    crc = "%08x" % crc32c(line.encode()) if crc is None else crc
    return (line + ',"crc32c":"' + crc + '"}' + tail).encode()


def index(name=b"w", shape=(2, 2), offset=(0, 0), length=(2, 2), byte_offset=8, byte_length=16,
          path=b"model/a", dtype=12, required=0):
    """One file, one F32 tensor of one box, as docs/formats/checkpoint.md lays it out."""
    strings = path + name
    file = struct.pack("<IIHHIQQIIQQ16sQ", 0, len(path), 0, 0, 1, 24, 8, 0, 22, 0, 1, b"f" * 16, 0)
    numel = 1
    for extent in shape:
        numel *= extent
    tensor = struct.pack("<IIHBBIIIQQQQQII16s", len(path), len(name), dtype, len(shape), 0, 0xFFFFFFFF, 0, 0,
                         0, 0, 1, numel & (2**64 - 1), 0, 0, 0, bytes(16))
    dims = struct.pack("<%dQ" % len(shape), *shape)
    box = struct.pack("<IIQQQIIQ", 0, 1, byte_offset, byte_length, 0, 0, 0, offset[0] + length[0])
    pairs = b"".join(struct.pack("<QQ", o, l) for o, l in zip(offset, length))
    sections = [(1, 1, strings), (2, 80, file), (3, 88, tensor), (4, 8, dims), (5, 48, box), (6, 16, pairs),
                (7, 4, struct.pack("<I", 0)), (8, 40, b""), (9, 64, b"")]
    table, body, begin = b"", b"", 64 + 32 * len(sections)
    for kind, size, data in sections:
        body += bytes(-(begin + len(body)) % 64)
        table += struct.pack("<IIQQII", kind, size, begin + len(body), len(data) // size, crc32c(data), 0)
        body += data
    header = struct.pack("<8sIIQQQI", b"ASHIDX1\0", 1, 0, begin + len(body), required, 0, len(sections))
    crc = crc32c(header + bytes(4) + b"a" * 16 + table)
    return header + struct.pack("<I", crc) + b"a" * 16 + table + body


DIGEST = {"size": 10, "crc32c": "00000000"}
COMMIT = {"format": "ashlar", "v": 1, "step": 3, "run_id": "r", "attempt": "0" * 32, "manifest": DIGEST,
          "index": DIGEST, "bytes": 1, "files": 1}
MANIFEST = {"format": "ashlar", "version": 1, "required_features": [], "run_id": "r", "step": 3,
            "attempt": "0" * 32, "created": "", "writer_version": "", "durability": "full", "tensors_total": 0,
            "components": {}, "files": [], "aliases": {}}

write("overlap.safetensors", safetensors('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                                         '"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', bytes(12)))
write("hole.safetensors", safetensors('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)))
write("huge_header.safetensors", safetensors("{}", b"", 2**62))
write("duplicate.safetensors", safetensors('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                           '"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)))
write("overflow.safetensors",
      safetensors('{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', b""))
write("deep.safetensors", safetensors('{"a":' + "[" * 100 + "]" * 100 + "}", b""))
write("cut.safetensors", safetensors('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', bytes(7)))
write("torn.COMMIT", commit(COMMIT)[:60])
write("checksum.COMMIT", commit(COMMIT, "deadbeef"))
write("trailing.COMMIT", commit(COMMIT, tail="\n\n"))
write("version.COMMIT", commit(dict(COMMIT, v=2)))
write("step.COMMIT", commit(dict(COMMIT, step=10**12)))
write("negative.COMMIT", commit(dict(COMMIT, bytes=-5)))
write("outside.index", index(offset=(1, 0)))
write("past_end.index", index(byte_offset=12))
write("dotdot.index", index(path=b"../../etc/passwd"))
write("numel.index", index(shape=(2**40, 2**40), length=(2, 2)))
write("dtype.index", index(dtype=14))
write("feature.index", index(required=1))
write("length.index", index(byte_length=12))
write("cut.index", index()[:200])
write("feature.manifest", json.dumps(dict(MANIFEST, required_features=["delta"])).encode())
write("path.manifest",
      json.dumps(dict(MANIFEST, files=[{"path": "/etc/passwd", "size": 1, "uuid": "0" * 32}])).encode())
write("duplicate.manifest", json.dumps(MANIFEST).encode()[:-1] + b', "step": 4}')
write("utf8.manifest", b'{"format": "\xff\xfe"}')
