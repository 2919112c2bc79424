#!/usr/bin/env python3
"""CPU seconds of a LoRA step: Ashlar against PEFT on PyTorch, in alternation, with the same model and batch.

The model has the shapes of llama-nano, 25 million parameters; r = 16 beside every linear layer of its blocks, all other
weights are frozen, AdamW.  Both compute on one thread, whose CPU time counts, so that other programs on the machine
disturb little; a program's time is that of its fastest round.  In fp32 both compute in fp32.  In bf16 PEFT's model is in
bf16 and its adapters in fp32, under autocast.  The floor is the flop of the step at the peak rate of one thread.

Run by scripts/peers/lora.sh --speed [--rounds N] [--precision fp32].
"""
import argparse
import contextlib
import json
import pathlib
import random
import resource
import tempfile
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from hf_parity import Ashlar
from lora import write_recipe

TOKENS, BATCH, RANK, VOCABULARY, STEPS = 512, 1, 16, 8192, 6
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(directory):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=512, num_hidden_layers=7, num_attention_heads=8,
                         num_key_value_heads=4, head_dim=64, intermediate_size=1408, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(directory)


class Peft:
    def __init__(self, directory, bf16):
        model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.bfloat16 if bf16 else torch.float32)
        self.model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=32, target_modules=TARGETS)).train()
        self.autocast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4, fused=True)
        self.ids = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))

    def step(self):
        begun = time.process_time()
        self.optimizer.zero_grad()
        with self.autocast:
            logits = self.model(input_ids=self.ids[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return time.process_time() - begun


def prepare(ashlar, work, precision):
    draw = random.Random(1)
    text = work / "text.txt"
    text.write_text("".join(chr(draw.randrange(97, 123)) for _ in range(1 << 18)))
    ashlar.run("data", "prepare", "--input", text, "--tokenizer", "byte", "--out", work / "data")
    tail = f'[lora]\nrank = {RANK}\nalpha = 32\ntargets = ["attention", "mlp"]\n'
    path = write_recipe(work / "recipe.toml", work / "model", work / "data", work / "run", 1e-4, 6, tail)
    text = path.read_text().replace("sequence_length = 256", f"sequence_length = {TOKENS}")
    text = text.replace('packing = "best_fit"\n', "").replace("every = 1\n", "every = 0\n")
    path.write_text(text.replace('precision = "fp32"', f'precision = "{precision}"'))
    return path


def seconds_of_run(ashlar, recipe, run, steps):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ashlar.run("train", recipe, f"train.run_dir={run}", f"train.steps={steps}", "train.threads=1")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ashlar_step(ashlar, recipe, work, number):
    """CPU seconds of a step, as the difference of two runs; and the least seconds that its flop take."""
    few, many = work / f"few{number}", work / f"many{number}"
    seconds = (seconds_of_run(ashlar, recipe, many, STEPS + 2) - seconds_of_run(ashlar, recipe, few, 2)) / STEPS
    rows = [json.loads(line) for line in (many / "metrics.jsonl").read_text().splitlines()]
    return seconds, min(row["mfu"] * row["step_s"] for row in rows if "step_s" in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        make_model(work / "model")
        ashlar, peft = Ashlar(args.ashlar), Peft(work / "model", args.precision == "bf16")
        recipe = prepare(ashlar, work, args.precision)
        peft.step()
        ours, theirs = [], []
        for number in range(args.rounds):
            theirs.append(min(peft.step() for _ in range(STEPS)))
            ours.append(ashlar_step(ashlar, recipe, work, number))
            print(f"round {number}: PEFT {theirs[-1]:.3f} s, Ashlar {ours[-1][0]:.3f} s", flush=True)
    best, floor = min(seconds for seconds, _ in ours), min(floor for _, floor in ours)
    print(f"{args.precision}, {BATCH * TOKENS} tokens a step: PEFT {min(theirs):.3f} s, Ashlar {best:.3f} s, "
          f"{min(theirs) / best:.2f} times as fast; floor {floor:.3f} s")


if __name__ == "__main__":
    main()
