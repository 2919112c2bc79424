#!/usr/bin/env python3
"""Chat models of each family through import, training and export.

The models are those of tests/fixtures/hf_*, with random rows for a larger vocabulary; the tokenizer is trained by Ashlar, and
transformers adds tokens, a template and a beginning of texts to it.  Run by scripts/peers/chat_models.sh.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_parity import ROOT, Ashlar, Checks

FAMILIES = ("hf_small", "hf_llama", "hf_qwen3", "hf_mixtral", "hf_qwen3_moe", "hf_minimax", "hf_qwen3_next")
VOCABULARY, ROWS = 320, 328  # of the tokenizer, and of the embedding
MARGIN = 1e-4
ADDED = ("<|im_start|>", "<|im_end|>")
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CHAT = [{"role": "user", "content": "Of what is  a wall of\nashlar?"}, {"role": "assistant", "content": "Stones."},
        {"role": "user", "content": "Why?"}]
TEXTS = ("", "the stone", "  two spaces", "<|im_start|>user\nhi<|im_end|>", "<s> is three characters", "é 🙂\t\n")
# Every file that goes along; special_tokens_map.json and added_tokens.json are as transformers 4 wrote them.
FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
         "chat_template.jinja", "generation_config.json")


def make_tokenizer(ashlar, work):
    """tokenizer.model, and what transformers makes of it with more tokens, a template and a beginning of texts."""
    text = ROOT / "tests/fixtures/vectors/stones.txt"
    ashlar.run("tokenizer", "train", "--input", text, "--vocab", VOCABULARY, "--out", work / "tokenizer.model")
    plain = work / "plain"
    shutil.copytree(ROOT / "tests/fixtures/hf_llama", plain)
    shutil.copy(work / "tokenizer.model", plain)
    ashlar.run("ckpt", "export", plain, work / "exported")
    tokenizer = AutoTokenizer.from_pretrained(work / "exported")
    tokenizer.split_special_tokens = False
    tokenizer.add_special_tokens({"additional_special_tokens": list(ADDED), "eos_token": ADDED[1]})
    tokenizer.chat_template = TEMPLATE
    bos = tokenizer.bos_token
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, tokenizer.bos_token_id)])
    tokenizer.save_pretrained(work / "chat")
    shutil.copy(work / "tokenizer.model", work / "chat")
    added = {token: tokenizer.convert_tokens_to_ids(token) for token in ADDED}
    (work / "chat/added_tokens.json").write_text(json.dumps(added, indent=1))
    (work / "chat/special_tokens_map.json").write_text(json.dumps({"bos_token": bos, "eos_token": ADDED[1]}))
    return tokenizer


def make_model(family, work, tokenizer, stops, dtype):
    """A directory of the family with the tokenizer's files, and how it stops and draws."""
    directory = work / family
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(ROOT / "tests/fixtures" / family, dtype=torch.float32)
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    model.config.eos_token_id = model.generation_config.eos_token_id = stops
    model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.to(dtype).save_pretrained(directory)
    for file in (work / "chat").iterdir():
        shutil.copy(file, directory)
    generation = {"eos_token_id": stops, "do_sample": False, "temperature": 0.6, "top_p": 0.95, "max_new_tokens": 24,
                  "repetition_penalty": 1.0, "transformers_version": "4.57.6"}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=3))
    return directory


def continuation(directory, ids):
    """The ids, and the least lead of a chosen token's logit: a smaller one than MARGIN lets rounding choose."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        made = model.generate(torch.tensor([ids]), output_logits=True, return_dict_in_generate=True)
    leads = [float(-(best := logits[0].topk(2).values).diff()) for logits in made.logits]
    return made.sequences[0].tolist(), leads


def check_family(ashlar, checks, family, work, tokenizer):
    end = tokenizer.convert_tokens_to_ids(ADDED[1])
    continuation_ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    dtype = torch.float16 if family in ("hf_llama", "hf_qwen3_moe") else torch.bfloat16
    foreign = make_model(family, work, tokenizer, [end, tokenizer.convert_tokens_to_ids("</s>")], dtype)
    run, out = work / f"{family}-run", work / f"{family}-out"
    data = work / "data"
    if not (work / "data.idx").exists():
        ashlar.run("data", "prepare", "--input", ROOT / "tests/fixtures/vectors/stones.txt", "--tokenizer",
                   foreign / "tokenizer.model", "--out", data)
    ashlar.run("ckpt", "import", foreign, work / f"{family}-root")
    recipe = work / f"{family}.toml"
    recipe.write_text(f"""[init]
model = "{work / f'{family}-root'}"
[data]
train = "{data}"
sequence_length = 32
validation_fraction = 0
[optim]
matrices = "adamw"
lr = 1e-4
lr_min = 1e-4
warmup_steps = 0
[train]
run_dir = "{run}"
steps = 3
micro_batch = 2
global_batch = 2
eval_every = 0
precision = "fp32"
""")
    ashlar.run("train", recipe)
    ashlar.run("ckpt", "export", run / "checkpoints", out)

    name = family.removeprefix("hf_")
    other = [file for file in FILES if (out / file).read_bytes() != (foreign / file).read_bytes()]
    checks.line(f"{name}: files", not other, f"other than they were: {other}" if other else f"{len(FILES)} byte for byte")
    before, after = (json.loads((d / "config.json").read_text()) for d in (foreign, out))
    keys = ("eos_token_id", "bos_token_id", "pad_token_id", "dtype", "vocab_size")
    differs = {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
    checks.line(f"{name}: ids and type of config.json", not differs, differs or after["dtype"])
    again = AutoTokenizer.from_pretrained(out)
    same = (len(again) == len(tokenizer) and again.eos_token_id == end
            and all(again(text)["input_ids"] == tokenizer(text)["input_ids"] for text in TEXTS))
    checks.line(f"{name}: tokenizer", same, f"{len(again)} tokens, eos {again.eos_token}")
    prompt = again.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    checks.line(f"{name}: template", prompt == continuation_ids, f"{len(prompt)} ids")
    want, leads = continuation(out, prompt)
    sure = next((n for n, lead in enumerate(leads) if lead < MARGIN), len(leads)) + len(prompt)
    got = json.loads(ashlar.run("generate", "--model", out, "--ids", ",".join(map(str, prompt)),
                                "--json", "--dtype", "fp32"))
    # Ashlar shows no control piece of the model, and an unknown one as sentencepiece does.
    hidden = [again.convert_tokens_to_ids(token) for token in ("<s>", "</s>", "<pad>")]
    text = again.decode([i for i in want if i not in hidden]).replace("<unk>", " \u2047 ")
    same = got["ids"][:sure] == want[:sure]
    checks.line(f"{name}: continuation", same, f"{sure - len(prompt)} of {len(leads)} ids, least lead {min(leads):.1e}")
    if sure == len(want):
        checks.line(f"{name}: text", got["text"] == text, repr(got["text"][-24:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="this one alone")
    args = parser.parse_args()
    ashlar, checks = Ashlar(args.ashlar), Checks()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        tokenizer = make_tokenizer(ashlar, work)
        for family in args.family or FAMILIES:
            check_family(ashlar, checks, family, work, tokenizer)
    print(f"{checks.count} checks, {checks.failed} failed")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
