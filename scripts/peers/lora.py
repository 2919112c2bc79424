#!/usr/bin/env python3
"""Fine-tuning on chats: Ashlar against Hugging Face PEFT and transformers, number by number, in fp32.

A small model of each family, with a tokenizer that has a chat template, learns the answers of a few chats.  All chats are
in one row, so that every step has the same data in any order.  transformers gets each chat by itself, with labels of -100
where nothing is learned.

  whole      AdamW of all parameters: the losses of three steps
  adapters   LoRA: PEFT begins with the adapters that Ashlar drew, exported before a step changed them; the losses of
             three steps, the gradient of the first, the adapters after the last
  exports    logits of the exported adapter in PEFT, and of the merged export in transformers, against Ashlar's

Run by scripts/peers/lora.sh, which sees to PEFT.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from chat_data import documents
from chat_models import make_model, make_tokenizer
from hf_parity import Ashlar, Checks, stored_tensors
from step_files import read_component

# Layers that get adapters; experts have none.
FAMILIES = {"hf_llama": "attention,mlp", "hf_qwen3": "q_proj,v_proj,down_proj", "hf_mixtral": "attention",
            "hf_qwen3_moe": "attention"}
STEPS, RANK, ALPHA, LR, BETAS, EPS = 3, 4, 6.0, 1e-2, (0.9, 0.95), 1e-8
CHATS = [("Of what is a wall?", "Of stones."), ("Why?", "They are the stones that there are."),
         ("Which stone is first?", "The first stone is the stone at the end of the wall.")]
LOSS, GRADIENT, LOGITS = 2e-6, 1e-4, 2e-5  # largest relative differences


def write_chats(path):
    with open(path, "w", encoding="utf-8") as file:
        for question, answer in CHATS:
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")


class Peer:
    """A PyTorch model that learns the documents of a dataset: the loss is the mean over all that is learned."""

    def __init__(self, model, prepared):
        self.model = model.train()
        self.documents = [(torch.tensor([ids]), torch.tensor([[i if bit else -100 for i, bit in zip(ids, bits)]]))
                          for ids, bits in prepared]
        self.targets = sum(int((labels[0, 1:] != -100).sum()) for _, labels in self.documents)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0)

    def gradients(self):
        self.optimizer.zero_grad()
        loss = 0.0
        for ids, labels in self.documents:
            part = self.model(input_ids=ids, labels=labels, use_cache=False).loss
            part = part * (int((labels[0, 1:] != -100).sum()) / self.targets)
            part.backward()
            loss += float(part)
        return loss

    def step(self):
        loss = self.gradients()
        self.optimizer.step()
        return loss


def write_recipe(path, foreign, data, run, lr, steps, tail):
    path.write_text(f"""[init]
model = "{foreign}"
[data]
train = "{data}"
packing = "best_fit"
sequence_length = 256
validation_fraction = 0
[optim]
matrices = "adamw"
schedule = "constant"
lr = {lr}
lr_min = {lr}
warmup_steps = 0
weight_decay = 0
clip_norm = 0
beta1 = {BETAS[0]}
beta2 = {BETAS[1]}
eps = {EPS}
[train]
run_dir = "{run}"
steps = {steps}
micro_batch = 1
global_batch = 1
eval_every = 0
precision = "fp32"
[checkpoint]
every = 1
keep = 9
{tail}""")
    return path


def losses_of(run):
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager")


def distance(found, wanted):
    """The largest difference over the largest wanted value."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def compare_losses(checks, name, found, wanted):
    worst = max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
    checks.line(name, worst < LOSS, f"{', '.join(f'{x:.6f}' for x in found)}: within {worst:.1e}")


def check_whole(ashlar, checks, name, foreign, data, work):
    run = work / "whole"
    ashlar.run("train", write_recipe(work / "whole.toml", foreign, data, run, LR, STEPS, ""))
    peer = Peer(load(foreign), list(documents(str(data))))
    compare_losses(checks, f"{name}: losses of all parameters, masked", losses_of(run), [peer.step() for _ in range(STEPS)])


def check_logits(ashlar, checks, name, model, source, ids):
    with torch.no_grad():
        wanted = model.eval()(input_ids=torch.tensor([ids])).logits[0]
    worst = distance(torch.as_tensor(ashlar.score(source, ids)["logits"]), wanted)
    checks.line(name, worst < LOGITS, f"{len(ids)} tokens within {worst:.1e}")


def check_adapters(ashlar, checks, name, targets, foreign, data, work):
    tail = f'[lora]\nrank = {RANK}\nalpha = {ALPHA}\ntargets = "{targets}"\n'
    start, run = work / "start", work / "run"
    ashlar.run("train", write_recipe(work / "start.toml", foreign, data, start, 0, 1, tail))
    ashlar.run("ckpt", "export", start, work / "first", "--adapter")
    ashlar.run("train", write_recipe(work / "run.toml", foreign, data, run, LR, STEPS, tail))
    ashlar.run("ckpt", "export", run, work / "last", "--adapter")
    ashlar.run("ckpt", "export", run, work / "merged", "--dtype", "fp32")

    prepared = list(documents(str(data)))
    peer = Peer(PeftModel.from_pretrained(load(foreign), work / "first", is_trainable=True), prepared)
    trained = {n: p for n, p in peer.model.named_parameters() if p.requires_grad}
    begun = stored_tensors(work / "first")
    checks.line(f"{name}: PEFT has the same adapters", len(trained) == len(begun), f"{len(begun)} tensors")
    base = losses_of(start)[0]
    compare_losses(checks, f"{name}: the first loss is the model's", [base],
                   [Peer(load(foreign), prepared).gradients()])

    peer.gradients()
    moments = read_component(next((run / "checkpoints").glob("step-*1")) / "optim")
    worst = 0.0
    for parameter, tensor in trained.items():
        native = parameter.removeprefix("base_model.model.").replace(".default", "")
        mean = torch.as_tensor(moments[f"optim.exp_avg.{native}"][1].copy())
        if float(tensor.grad.abs().max()) > 0:
            worst = max(worst, distance(mean / (1 - BETAS[0]), tensor.grad))
    checks.line(f"{name}: gradients of the first step", worst < GRADIENT, f"{len(trained)} tensors within {worst:.1e}")

    compare_losses(checks, f"{name}: losses of adapters, masked", losses_of(run), [peer.step() for _ in range(STEPS)])
    theirs, ours = get_peft_model_state_dict(peer.model), stored_tensors(work / "last")
    same = theirs.keys() == ours.keys()
    worst = max(distance(ours[n], theirs[n]) for n in ours) if same else float("nan")
    checks.line(f"{name}: adapters after {STEPS} steps", same and worst < 1e-3, f"{len(ours)} tensors within {worst:.1e}")

    ids = prepared[-1][0]
    again = PeftModel.from_pretrained(load(foreign), work / "last")
    check_logits(ashlar, checks, f"{name}: logits of the exported adapter in PEFT", again, run, ids)
    check_logits(ashlar, checks, f"{name}: logits of the merged export", load(work / "merged"), run, ids)
    check_logits(ashlar, checks, f"{name}: Ashlar's own of the merged export", load(work / "merged"), work / "merged", ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="this one alone")
    args = parser.parse_args()
    ashlar, checks = Ashlar(args.ashlar), Checks()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        tokenizer = make_tokenizer(ashlar, work)
        write_chats(work / "chats.jsonl")
        for family in args.family or FAMILIES:
            name = family.removeprefix("hf_")
            foreign = make_model(family, work, tokenizer, tokenizer.eos_token_id, torch.float32)
            own = work / f"{family}-work"
            own.mkdir()
            data = own / "chats"
            ashlar.run("data", "prepare", "--format", "chat", "--input", work / "chats.jsonl", "--tokenizer",
                       foreign / "tokenizer.model", "--out", data)
            if FAMILIES[family] != "attention":  # where a router chooses, rounding can change a choice
                check_whole(ashlar, checks, name, foreign, data, own)
            check_adapters(ashlar, checks, name, FAMILIES[family], foreign, data, own)
    print(f"{checks.count} checks, {checks.failed} failed")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
