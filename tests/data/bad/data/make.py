#!/usr/bin/env python3
"""Writes the malformed datasets, tokenizers and texts beside it; bad_data_test.cpp says what is wrong
with each and what must be said about it.  no_eos.model came from spm_train --eos_id=-1."""
import gzip
import json
import pathlib
import struct

here = pathlib.Path(__file__).parent
MAGIC = b"MMIDIDX\0\0"


def idx(lengths=(3, 2), offsets=(0, 6), documents=(0, 1, 2), magic=MAGIC, version=1, kind=8,
        counts=None, keep=None):
    s, d = counts or (len(lengths), len(documents))
    data = magic + struct.pack("<QBQQ", version, kind, s, d)
    data += struct.pack(f"<{len(lengths)}i", *lengths)
    data += struct.pack(f"<{len(offsets)}q{len(documents)}q", *offsets, *documents)
    return data[:keep]


def write(name, index, tokens=struct.pack("<5H", 1, 2, 3, 4, 5), sidecar=None):
    if index is not None:
        (here / f"{name}.idx").write_bytes(index)
    if tokens is not None:
        (here / f"{name}.bin").write_bytes(tokens)
    if sidecar is not None:
        (here / f"{name}.json").write_text(sidecar)


def sidecar(**changes):
    value = {
        "format": "ashlar-dataset", "version": 1,
        "tokenizer": {"kind": "byte", "fingerprint": "0123456789abcdef", "vocab_size": 260, "eos_id": 1},
        "documents": 2, "tokens": 5, "token_type": "u16", "bin_crc32c": "00c0ffee", "inputs": []}
    for path, change in changes.items():
        *parents, last = path.split("__")
        target = value
        for parent in parents:
            target = target[parent]
        if change is None:
            del target[last]
        else:
            target[last] = change
    return json.dumps(value, indent=1) + "\n"


write("idx_cut", idx(keep=60))
write("idx_cut_header", idx(keep=20))
write("idx_empty", b"")
write("idx_magic", idx(magic=b"MMIDXXX\0\0"))
write("idx_version", idx(version=2))
write("idx_float", idx(kind=6))
write("idx_type", idx(kind=77))
write("idx_count_overflow", idx(counts=(1 << 61, 3)))
write("idx_documents_overflow", idx(counts=(2, (1 << 64) - 1)))
write("idx_count", idx(counts=(3, 3)))
write("idx_no_sequence", idx((), (), (0, 0)))
write("idx_no_token", idx((0, 0), (0, 0)), b"\0")
write("idx_offset_order", idx((3, 2, 1), (0, 10, 6), (0, 1, 2, 3)))
write("idx_offset_gap", idx(offsets=(0, 8)))
write("idx_offset_first", idx(offsets=(2, 8)))
write("idx_length", idx(lengths=(3, -2)))
write("idx_documents_first", idx(documents=(1, 1, 2)))
write("idx_documents_order", idx((1, 1, 3), (0, 2, 4), (0, 2, 1, 3)))
write("idx_documents_last", idx(documents=(0, 1, 1)))
write("bin_short", idx(), struct.pack("<4H", 1, 2, 3, 4))
write("bin_long", idx(), struct.pack("<6H", 1, 2, 3, 4, 5, 6))
write("bin_absent", idx(), None)
write("bin_empty", idx(), b"")
write("idx_absent", None)
write("id_large", idx(), struct.pack("<5H", 1, 2, 3, 60000, 5))
write("id_negative", idx(offsets=(0, 12), kind=4), struct.pack("<5i", 1, 2, 3, -7, 5))
write("sidecar_json", idx(), sidecar="{\"format\": \"ashlar-dataset\", \n")
write("sidecar_format", idx(), sidecar=sidecar(format="parquet"))
write("sidecar_version", idx(), sidecar=sidecar(version=9))
write("sidecar_member", idx(), sidecar=sidecar(tokens=None))
write("sidecar_counts", idx(), sidecar=sidecar(documents=3))
write("sidecar_eos", idx(), sidecar=sidecar(tokenizer__eos_id=260))
write("sidecar_fingerprint", idx(), sidecar=sidecar(tokenizer__fingerprint="12zz"))

good = '{"text": "one stone"}\n{"text": "two stones"}\n'
texts = {
    "not_json.jsonl": (good + '{"text": "three\n').encode(),
    "no_text.jsonl": (good + '{"txt": "three"}\n').encode(),
    "text_number.jsonl": (good + '{"text": 3}\n').encode(),
    "array.jsonl": (good + '["three"]\n').encode(),
    "not_utf8.jsonl": good.encode() + b'{"text": "caf\xe9"}\n',
    "latin1.txt": b"".join(b"une pierre taill\xe9e, pos\xe9e\n" for _ in range(20)),
    "blank.txt": b"\n \t\n\f\n",
    "no_bytes.txt": b"",
    "not_gzip.txt.gz": b"plain text\n",
}
for name, data in texts.items():
    (here / name).write_bytes(data)
packed = gzip.compress(b"one stone upon another\n" * 100, mtime=0)
(here / "cut.txt.gz").write_bytes(packed[:-12])
(here / "damaged.txt.gz").write_bytes(packed[:20] + b"\xff\xff\xff" + packed[23:])
(here / "checksum.txt.gz").write_bytes(packed[:-8] + bytes(4) + packed[-4:])
(here / "tail.txt.gz").write_bytes(packed + b"what is this?")
(here / "noise.model").write_bytes(bytes((i * 37 + 11) % 251 for i in range(500)))
(here / "empty.model").write_bytes(b"")
(here / "cut.model").write_bytes((here / "no_eos.model").read_bytes()[:3000])
# One piece more, {text: NUL, score: -10}: the library's trie throws where a text begins with NUL.
(here / "nul_piece.model").write_bytes((here.parent.parent / "vectors" / "unigram_default.model").read_bytes() +
                                       bytes([0x0a, 8, 0x0a, 1, 0, 0x15, 0, 0, 0x20, 0xc1]))
