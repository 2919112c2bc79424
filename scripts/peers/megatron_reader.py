#!/usr/bin/env python3
"""Reads datasets with masks by Megatron's IndexedDataset, and compares documents and ids with those of transformers.

Random chats in the forms of chat_data.py go through `ashlar data prepare --format chat`.  Their ids are below 65,500,
so that the files hold u16; with a tokenizer of 70,000 ids they hold i32.  Run by megatron_reader.sh.
"""
import argparse
import importlib.metadata
import json
import pathlib
import random
import sys
import tempfile

from megatron.core.datasets.indexed_dataset import IndexedDataset
from transformers import AutoTokenizer

from chat_data import FORMS, make_directory, prepare, random_chat


def widen(directory, wanted):
    """Gives the tokenizer so many ids, by names that no text has."""
    path = directory / "tokenizer.json"
    whole = json.loads(path.read_text())
    first = max([*whole["model"]["vocab"].values(), *(token["id"] for token in whole["added_tokens"])]) + 1
    for number in range(first, wanted):
        whole["added_tokens"].append({"id": number, "content": f"<|reserved_{number}|>", "single_word": False,
                                      "lstrip": False, "rstrip": False, "normalized": False, "special": True})
    path.write_text(json.dumps(whole))


def check(ashlar, form, num_ids, num_chats, work):
    directory = make_directory(form, work / f"{form}-{num_ids}")
    widen(directory, num_ids)
    draw = random.Random(11)
    rows = [{"messages": random_chat(draw)} for _ in range(num_chats)]
    chats, prefix = work / "chats.jsonl", work / f"{form}-{num_ids}-data"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(ashlar, directory, chats, prefix)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    end = tokenizer.eos_token_id
    wanted = [tokenizer.apply_chat_template(row["messages"], return_dict=False) for row in rows]
    wanted = [ids if ids[-1] == end else [*ids, end] for ids in wanted]
    dataset = IndexedDataset(str(prefix))
    found = [dataset[n].tolist() for n in range(len(dataset))]
    mask_bytes = (sum(map(len, wanted)) + 7) // 8
    same = (found == wanted and dataset.document_indices.tolist() == list(range(len(rows) + 1))
            and dataset.sequence_lengths.tolist() == [len(ids) for ids in wanted]
            and pathlib.Path(f"{prefix}.mask").stat().st_size == mask_bytes)
    print(f"{'ok  ' if same else 'FAIL'}  {form}, {len(tokenizer)} ids as {dataset.index.dtype.__name__}: {len(dataset)} "
          f"documents, {sum(map(len, found))} ids, {mask_bytes} bytes of mask", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--chats", type=int, default=200, help="of each form")
    args = parser.parse_args()
    print(f"megatron-core {importlib.metadata.version('megatron-core')}")
    with tempfile.TemporaryDirectory() as scratch:
        cases = [(form, 0) for form in FORMS] + [("qwen", 70_000)]
        done = [check(args.ashlar, form, ids, args.chats, pathlib.Path(scratch)) for form, ids in cases]
    sys.exit(not all(done))


if __name__ == "__main__":
    main()
