#!/usr/bin/env python3
"""Compares the ids and masks of prepared datasets of chats with those of Hugging Face transformers.

    python3 scripts/peers/chat_data.py [--ashlar FILE] [--form FORM] [--chats N]
    python3 scripts/peers/chat_data.py DIRECTORY CHATS.jsonl PREFIX

Without a directory: for each form of tokenizer.json, random chats through `ashlar data prepare --format chat`, once with
a template that has {% generation %} and once with the same template without it, where Ashlar finds the answers itself.
transformers has the former in both cases.

DIRECTORY holds a tokenizer with a chat template that has {% generation %}; `ashlar data prepare --format chat` made PREFIX
of rows {"messages": [...], "tools": [...]}, in their order.  Needs `pip install transformers jinja2`, and no PyTorch.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from transformers import AutoTokenizer

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures"
TURNS = ("{% for m in messages %}OPEN{{ m.role }}MIDDLE{% if m.role == 'assistant' %}{% generation %}{{ m.content }}END"
         "{% endgeneration %}{% else %}{{ m.content }}END{% endif %}{{ '\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}OPENassistantMIDDLE{% endif %}")


def turns(opening, middle, end):
    return TURNS.replace("OPEN", opening).replace("MIDDLE", middle).replace("END", end)


# By form: the tokenizer, the template, the names that become tokens.
CHATML = {"eos_token": "<|im_end|>"}
FORMS = {
    "llama2": ("llama2", turns("<|", "|>\n", "{{ eos_token }}"),  # as of Zephyr
               {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "llama3": ("llama3", "llama3_training.jinja", {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "qwen": ("qwen", turns("<|im_start|>", "\n", "<|im_end|>"), CHATML),
    "qwen2_5": ("qwen", "qwen2_5_training.jinja", CHATML),
    "qwen3": ("qwen", "qwen3_training.jinja", CHATML),
}
LEARN_MORE = ("qwen2_5", "qwen3")  # their blocks hold line breaks around the answer
MARKS = {"llama3": ["<|start_header_id|>", "<|end_header_id|>"], "qwen": ["</think>"]}
WORDS = ["stone", "a wall", "of", "Why?", "it's", "12345", "\n", "\n\n", "  ", "\t", "é", "漢字", "🙂", "[INST]", "e\u0301",
         "{\"a\": 1}", "...", "def f(x):\n    return x"]
NAMES = ["</s>", "<|im_end|>", "<|eot_id|>", "<s>", "<think>"]  # in questions: an answer ends with the first of them


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


def make_directory(form, directory):
    """A directory with the form's tokenizer.json and a chat template, as a model has them."""
    name, template, special = FORMS[form]
    directory.mkdir()
    whole = json.loads((FIXTURES / "tokenizers" / name / "tokenizer.json").read_text())
    first = max([*whole["model"]["vocab"].values(), *(token["id"] for token in whole["added_tokens"])]) + 1
    for number, mark in enumerate(MARKS.get(name, [])):
        whole["added_tokens"].append({"id": first + number, "content": mark, "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False, "special": True})
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    text = (FIXTURES / "chat_templates" / template).read_text() if template.endswith(".jinja") else template
    (directory / "chat_template.jinja").write_text(text)
    return directory


def without_generation(directory, plain):
    shutil.copytree(directory, plain)
    path = plain / "chat_template.jinja"
    text = re.sub(r"generation( *-?%})", r"if true\1", path.read_text())
    path.write_text(text.replace("endif true", "endif"))
    return plain


def random_text(draw, words):
    """Neither empty nor with white space at its ends, which tokens would share with what is around it."""
    while True:
        text = draw.choice(["", " "]).join(draw.choice(words) for _ in range(draw.randrange(1, 12))).strip()
        if text:
            return text


def random_chat(draw):
    return [{"role": role, "content": random_text(draw, words)} for _ in range(draw.randrange(1, 5))
            for role, words in (("user", WORDS + NAMES), ("assistant", WORDS))]


def compare(tokenizer, rows, prefix):
    """The number of chats with other ids or masks; prints three of them."""
    differing = 0
    for number, (row, (ids, bits)) in enumerate(zip(rows, documents(str(prefix)), strict=True)):
        theirs = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=True, return_dict=True,
                                               return_assistant_tokens_mask=True)
        if ids[-1] == tokenizer.eos_token_id and theirs["input_ids"][-1] != tokenizer.eos_token_id:
            ids, bits = ids[:-1], bits[:-1]  # the end of the document
        if ids != theirs["input_ids"] or bits != theirs["assistant_masks"]:
            differing += 1
            if differing <= 3:
                print(f"row {number}: {ids} {bits}\n   theirs: {theirs['input_ids']} {theirs['assistant_masks']}")
    return differing


def prepare(ashlar, directory, chats, prefix):
    subprocess.run([ashlar, "data", "prepare", "--format", "chat", "--input", chats, "--tokenizer", directory, "--out",
                    prefix], check=True, capture_output=True)


def check_form(ashlar, form, num_chats, work):
    directory = make_directory(form, work / form)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    draw = random.Random(7)
    rows = [{"messages": random_chat(draw)} for _ in range(num_chats)]
    chats = work / f"{form}.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    failed = 0
    sources = {"with": directory}
    if form not in LEARN_MORE:
        sources["without"] = without_generation(directory, work / f"{form}-plain")
    for kind, source in sources.items():
        prefix = work / f"{form}-{kind}"
        prepare(ashlar, source, chats, prefix)
        differing = compare(tokenizer, rows, prefix)
        print(f"{form}, {kind} generation blocks: {num_chats} chats, {differing} with other ids or masks", flush=True)
        failed += differing
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--form", choices=FORMS, action="append", help="this one alone")
    parser.add_argument("--chats", type=int, default=500, help="of each form")
    parser.add_argument("prepared", nargs="*", metavar="DIRECTORY CHATS.jsonl PREFIX")
    args = parser.parse_args()
    if args.prepared:
        directory, chats, prefix = args.prepared
        rows = [json.loads(line) for line in open(chats, encoding="utf-8")]
        failed = compare(AutoTokenizer.from_pretrained(directory), rows, prefix)
        print(f"{len(rows)} chats, {failed} with other ids or masks")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            failed = sum(check_form(args.ashlar, form, args.chats, pathlib.Path(scratch)) for form in args.form or FORMS)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
