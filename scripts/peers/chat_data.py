#!/usr/bin/env python3
"""Compares the ids and masks of a prepared dataset of chats with those of Hugging Face transformers.

    python3 scripts/peers/chat_data.py DIRECTORY CHATS.jsonl PREFIX

DIRECTORY holds a tokenizer with a chat template that has {% generation %}; `ashlar data prepare --format chat` made PREFIX
of rows {"messages": [...], "tools": [...]}, in their order.  Needs `pip install transformers jinja2`, and no PyTorch.
"""
import json
import pathlib
import struct
import sys

from transformers import AutoTokenizer


def documents(prefix):
    """The ids and the bits of each document, by the layout of docs/formats/dataset.md."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    kind, sequences = index[17], struct.unpack_from("<Q", index, 18)[0]
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    code, size = {8: ("H", 2), 4: ("i", 4)}[kind]
    raw, mask = pathlib.Path(prefix + ".bin").read_bytes(), pathlib.Path(prefix + ".mask").read_bytes()
    ids = struct.unpack(f"<{len(raw) // size}{code}", raw)
    at = 0
    for length in lengths:
        yield list(ids[at:at + length]), [mask[i // 8] >> i % 8 & 1 for i in range(at, at + length)]
        at += length


def main():
    directory, chats, prefix = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    rows = [json.loads(line) for line in open(chats, encoding="utf-8")]
    differing = 0
    prepared = list(documents(prefix))
    for number, (row, (ids, bits)) in enumerate(zip(rows, prepared, strict=True)):
        theirs = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=True, return_dict=True,
                                               return_assistant_tokens_mask=True)
        if ids[-1] == tokenizer.eos_token_id and theirs["input_ids"][-1] != tokenizer.eos_token_id:
            ids, bits = ids[:-1], bits[:-1]  # the end of the document
        if ids != theirs["input_ids"] or bits != theirs["assistant_masks"]:
            differing += 1
            print(f"row {number}: {ids} {bits}\n   theirs: {theirs['input_ids']} {theirs['assistant_masks']}")
    print(f"{len(rows)} chats, {differing} with other ids or masks")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
