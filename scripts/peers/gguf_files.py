#!/usr/bin/env python3
"""Exports of small models of Llama and Qwen3, converted to GGUF: every tensor and every token as in the export.

The converter knows a tokenizer.json by a hash of the ids that it gives a certain text, so it refuses the tokenizers
of the tests, which are too small to be known; --pre names what theirs are like.  A tokenizer.model needs no such name.
Run by gguf.sh.
"""
import argparse
import json
import pathlib
import runpy
import shutil
import subprocess
import sys
import tempfile

import torch
from conversion.base import TextModel
from gguf import GGUFReader
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat_data import make_directory
from chat_models import make_tokenizer
from hf_parity import ROOT, Ashlar, Checks

# By name: the fixture, the tokenizer's form (chat_data.py; sentencepiece: tokenizer.model), and the converter's name.
CASES = {"llama, tokenizer.model": ("hf_llama", "sentencepiece", None),
         "llama, tokenizer.json": ("hf_llama", "llama3", "llama-bpe"),
         "qwen3, tokenizer.json": ("hf_qwen3", "qwen", "qwen2")}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def make_model(ashlar, fixture, form, work):
    """The fixture with rows for the tokenizer's ids, as a directory that Ashlar exported."""
    foreign, out = work / "foreign", work / "out"
    if form == "sentencepiece":
        make_tokenizer(ashlar, work)
        tokens = work / "chat"
    else:
        tokens = make_directory(form, work / "tokens")
    tokenizer = AutoTokenizer.from_pretrained(tokens)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(ROOT / "tests/fixtures" / fixture, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer) + 7, mean_resizing=False)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
    model.save_pretrained(foreign)
    for file in tokens.iterdir():
        shutil.copy(file, foreign)
    ashlar.run("ckpt", "export", foreign, out)
    return out


def convert(converter, directory, gguf, pre):
    """In a process of its own; pre: the name that the converter has for tokenizers of this form."""
    command = [sys.executable, __file__, "--run", converter, "--pre", pre or "", str(directory), str(gguf)]
    return subprocess.run(command, capture_output=True, text=True)


def run_converter(converter, directory, gguf, pre):
    if pre:
        TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    sys.argv = [converter, directory, "--outfile", gguf, "--outtype", "f32"]
    runpy.run_path(converter, run_name="__main__")


def paired_halves(rows, heads):
    """llama.cpp rotates neighbours, and Llama's files have the halves of a head: its rows are put in that order."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def export_name(name):
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.{suffix}"
    _, block, part = stem.split(".")
    return f"model.layers.{block}.{PARTS[part]}.{suffix}"


def check_tensors(checks, name, directory, reader):
    config = json.loads((directory / "config.json").read_text())
    left = load_file(directory / "model.safetensors")
    differing = []
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        wanted = left.pop(export_name(tensor.name))
        if config["model_type"] == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            keys = tensor.name.endswith("attn_k.weight")
            wanted = paired_halves(wanted, config["num_key_value_heads" if keys else "num_attention_heads"])
        if not torch.equal(torch.from_numpy(tensor.data.copy()), wanted):
            differing.append(tensor.name)
    checks.line(f"{name}: tensors", not differing and not left,
                f"{len(reader.tensors)} in F32; other values: {differing}; missing: {list(left)}")


def check_tokens(checks, name, directory, reader):
    def value(key):
        field = reader.fields.get(f"tokenizer.{key}")
        return None if field is None else field.contents()

    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = value("ggml.tokens")
    same = all(texts[tokenizer.convert_tokens_to_ids(token)] == token for token in tokenizer.get_vocab())
    checks.line(f"{name}: tokens", same and value("ggml.eos_token_id") == tokenizer.eos_token_id
                and value("chat_template") == tokenizer.chat_template,
                f"{len(texts)}, model {value('ggml.model')}, eos {value('ggml.eos_token_id')}, and the template")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--converter", help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--pre", help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        return run_converter(args.run, *args.paths, args.pre)
    ashlar, checks = Ashlar(args.ashlar), Checks()
    for name, (fixture, form, pre) in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            work = pathlib.Path(scratch)
            directory, gguf = make_model(ashlar, fixture, form, work), work / "model.gguf"
            if pre:
                refused = convert(args.converter, directory, gguf, None)
                said = (refused.stderr.strip().splitlines() or [""])[-1]
                checks.line(f"{name}: an unknown tokenizer is refused",
                            refused.returncode != 0 and "BPE pre-tokenizer was not recognized" in said, said)
            done = convert(args.converter, directory, gguf, pre)
            if done.returncode:
                checks.line(f"{name}: conversion", False, done.stderr.strip().splitlines()[-1])
                continue
            reader = GGUFReader(gguf)
            check_tensors(checks, name, directory, reader)
            check_tokens(checks, name, directory, reader)
    print(f"{checks.count} checks, {checks.failed} failed")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
