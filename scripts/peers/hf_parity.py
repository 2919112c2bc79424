#!/usr/bin/env python3
"""Parity of Ashlar and Hugging Face transformers, in fp32, through files in both directions.

  golden tiny model    ZAYA1, by formula; transformers saves, Ashlar scores, imports, exports; transformers loads
  random models        ZAYA1 in several shapes: sliding windows, grouped and ungrouped heads, the skip class selected
  trained models       ZAYA1, Mixtral, Qwen3-MoE: Ashlar trains a few steps and exports; transformers loads
  greedy continuation  through the caches of both programs
  texts                of a BPE and a unigram tokenizer: ids and bytes of 2,000 texts, a task of lm-eval (hf_texts.py)

Experts and argmax must be equal; loss (relative) and logits (relative to the largest) within 1e-5.  An inequality of
two nearly equal numbers would say nothing, so seeds and token windows are chosen such that the chosen expert and the
likeliest token lead by more than 1e-4.  Run by scripts/peers/hf_parity.sh.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter
from transformers.models.zaya.modeling_zaya import ZayaRouter

from hf_models import RANDOM, RECIPE, TINY, TRAINED, fill_golden, fill_random, make_model
from hf_texts import check_texts

TOLERANCE = 1e-5
MARGIN = 1e-4
ROUTERS = (MixtralTopKRouter, Qwen3MoeTopKRouter, ZayaRouter)
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Checks:
    """Prints one line per check and remembers failures."""

    def __init__(self):
        self.count = self.failed = 0

    def line(self, name, ok, details):
        self.count += 1
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'}  {name:<64} {details}", flush=True)

    def note(self, text):
        print(f"note  {text}", flush=True)


class Ashlar:
    def __init__(self, binary):
        self.binary = str(pathlib.Path(binary).resolve())

    def run(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"ashlar {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def score(self, model, ids):
        with tempfile.TemporaryDirectory() as scratch:
            logits = pathlib.Path(scratch) / "logits.safetensors"
            out = json.loads(self.run("score", "--model", model, "--ids", ",".join(map(str, ids)), "--dtype", "fp32",
                                      "--logits", logits))
            out["logits"] = load_file(logits)["logits"]
        return out

    def greedy(self, model, prompt, tokens, *flags):
        out = self.run("generate", "--model", model, "--ids", ",".join(map(str, prompt)), "--max-tokens", tokens,
                       "--dtype", "fp32", "--json", *flags)
        return json.loads(out)["ids"]


def stored_tensors(directory):
    """Of all safetensors files of a directory."""
    return {name: t for file in sorted(directory.glob("*.safetensors")) for name, t in load_file(file).items()}


def load_model(directory, checks):
    """As transformers loads it; refuses tensors that are missing, left over or other than in the file.  What it holds
    is judged by what it saves, where stacks of experts are the matrices of Mixtral's and Qwen3-MoE's files again.

    One difference is transformers' own (seen in 5.23): _init_weights of ZAYA1 writes -1 into the skip class's balancing
    bias after the file was read.  It is printed, and put right, so that the rest can be compared.
    """
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                       experts_implementation="eager", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            sys.exit(f"{directory}: transformers reports {problem} {info[problem]}")
    stored, reset = stored_tensors(directory), []
    for name, bias in model.named_buffers():
        if name.endswith("balancing_biases") and bias[-1] == -1 and stored[name][-1] != -1:
            reset.append(stored[name][-1].item())
            bias[-1] = reset[-1]
    if reset:
        checks.note(f"transformers set the last balancing bias of {len(reset)} blocks to -1; the file says "
                    f"{', '.join(f'{b:g}' for b in sorted(set(reset)))}, which was put back")
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        held = stored_tensors(pathlib.Path(again))
    for name in stored.keys() | held.keys():
        if name not in held or name not in stored or not torch.equal(held[name], stored[name].float()):
            sys.exit(f"{directory}: transformers holds another {name} than the file")
    return model.eval()


@torch.no_grad()
def look(model, ids):
    """What transformers says of ids, and by how much the chosen experts and the likeliest tokens lead."""
    experts, lead = [], []

    def chosen(router, _, output):  # output[0]: logits of every class; the skip class is hidden in the indices
        k = router.top_k
        biased = torch.softmax(output[0].float(), dim=-1) + getattr(router, "balancing_biases", 0)
        top = biased.topk(k + 1, dim=-1)
        experts.append(top.indices[:, :k].sort().values.squeeze(1).tolist())
        lead.append((top.values[:, k - 1] - top.values[:, k]).min().item())

    hooks = [m.register_forward_hook(chosen) for m in model.modules() if isinstance(m, ROUTERS)]
    batch = torch.tensor([ids])
    out = model(input_ids=batch, labels=batch, use_cache=False)
    for hook in hooks:
        hook.remove()
    top = out.logits[0].topk(2, dim=-1).values
    return dict(loss=out.loss.item(), logits=out.logits[0], experts=experts, argmax=out.logits[0].argmax(-1).tolist(),
                margin=min(min(lead), (top[:, 0] - top[:, 1]).min().item()))


@torch.no_grad()
def greedy(model, prompt, tokens, eos=None):
    """The continuation by generate(), with its cache, and by how much its tokens lead."""
    batch = torch.tensor([prompt])
    model.generation_config.eos_token_id = eos
    out = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=tokens,
                         output_logits=True, return_dict_in_generate=True)
    tops = [step[0].topk(2).values for step in out.logits]
    return out.sequences[0].tolist(), min((t[0] - t[1]).item() for t in tops)


def equal_count(a, b):
    pairs = [(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)]
    return sum(x == y for x, y in pairs), len(pairs)


def check_scores(checks, name, theirs, ours):
    loss = abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"])
    logits = ((ours["logits"] - theirs["logits"]).abs().max() / theirs["logits"].abs().max()).item()
    argmax, tokens = equal_count([ours["argmax"]], [theirs["argmax"]])
    experts, choices = equal_count(ours["experts"], theirs["experts"])
    ok = max(loss, logits) <= TOLERANCE and argmax == tokens and experts == choices
    checks.line(name, ok, f"loss {ours['loss']:.7f} | {theirs['loss']:.7f} (rel {loss:.1e}), logits rel {logits:.1e}, "
                f"argmax {argmax}/{tokens}, experts {experts}/{choices}, least lead {theirs['margin']:.1e}")


def check_greedy(checks, name, ashlar, model, directory, prompts, tokens):
    """Of the prompts whose continuation leads clearly, the one with the most different tokens in it."""
    tried = [(prompt, *greedy(model, prompt, tokens)) for prompt in prompts]
    prompt, theirs, lead = max(tried, key=lambda t: (t[2] > MARGIN, len(set(t[1][len(t[0]):]))))
    ours = ashlar.greedy(directory, prompt, tokens, "--ignore-eos")
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(theirs)) - len(prompt)
    checks.line(f"{name}: greedy continuation", ours == theirs and lead > MARGIN,
                f"{same}/{tokens} tokens equal after a prompt of {len(prompt)}, {len(set(theirs[len(prompt):]))} "
                f"different ones, least lead {lead:.1e}")
    return prompt, theirs[len(prompt):]


def same_files(a, b):
    """Number of tensors that two directories hold bit for bit alike, and of all."""
    a, b = stored_tensors(a), stored_tensors(b)
    names = a.keys() | b.keys()
    equal = [n for n in names if n in a and n in b and a[n].dtype == b[n].dtype and torch.equal(a[n], b[n])]
    return len(equal), len(names)


def check_round_trips(checks, name, ashlar, saved, scratch, theirs, ids):
    """saved -> checkpoint -> native export -> transformers; of ZAYA1 also legacy export -> Ashlar."""
    root, native, legacy, again = (scratch / part for part in ("root", "native", "legacy", "again"))
    exports = {"import, native export": native}
    ashlar.run("ckpt", "import", saved, root)
    ashlar.run("ckpt", "export", root, native, "--dtype", "fp32")
    if json.loads((saved / "config.json").read_text())["model_type"] == "zaya":
        ashlar.run("ckpt", "export", root, legacy, "--dtype", "fp32", "--layout", "legacy")
        ashlar.run("ckpt", "export", legacy, again, "--dtype", "fp32")
        exports["legacy export, native export of it"] = again
        check_scores(checks, f"{name}: Ashlar's legacy export, loaded by Ashlar", theirs, ashlar.score(legacy, ids))
    for what, directory in exports.items():
        equal, tensors = same_files(saved, directory)
        checks.line(f"{name}: {what}", equal == tensors, f"{equal}/{tensors} tensors bit-equal to what was saved")
    check_scores(checks, f"{name}: Ashlar's native export, loaded by HF", look(load_model(native, checks), ids),
                 ashlar.score(root, ids))


def check_golden(checks, ashlar, scratch):
    golden = json.loads((ROOT / "tests/fixtures/zaya1_tiny.json").read_text())
    ids = golden["ids"] + golden["targets"][-1:]
    model = make_model(TINY)
    fill_golden(model)
    model.save_pretrained(scratch / "saved")
    theirs = look(model, ids)
    difference = abs(theirs["loss"] - golden["loss"]) / golden["loss"]
    checks.line("golden tiny: HF against the golden file", difference <= TOLERANCE,
                f"loss {theirs['loss']:.7f} | {golden['loss']:.7f} (rel {difference:.1e})")
    check_scores(checks, "golden tiny: HF saves, Ashlar loads", theirs, ashlar.score(scratch / "saved", ids))
    check_round_trips(checks, "golden tiny", ashlar, scratch / "saved", scratch, theirs, ids)
    check_greedy(checks, "golden tiny", ashlar, model, scratch / "saved", [ids[:n] for n in range(2, 8)], 24)


def check_random(checks, ashlar, scratch, name, shape, tokens=97):
    model = make_model(shape)
    for seed in range(1000):
        fill_random(model, seed, shape.get("skip_bias", -1.0))
        ids = torch.randint(shape["vocab_size"], (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
        theirs = look(model, ids)
        skipped = sum(e == shape["num_experts"] for layer in theirs["experts"] for e in layer)
        if theirs["margin"] > MARGIN and bool(skipped) == ("skip_bias" in shape):
            break
    else:
        sys.exit(f"{name}: no seed below 1000 gives a lead above {MARGIN}")
    title = f"{name} (seed {seed})"
    saved = scratch / "saved"
    model.save_pretrained(saved)
    check_scores(checks, f"{title}: HF saves, Ashlar loads", theirs, ashlar.score(saved, ids))
    check_round_trips(checks, name, ashlar, saved, scratch, theirs, ids)
    prompts = [ids[start:start + 21] for start in range(0, 60, 10)]
    prompt, made = check_greedy(checks, name, ashlar, model, saved, prompts, 40)
    check_stop(checks, name, ashlar, model, saved, prompt, max(made, key=made.index))


def check_stop(checks, name, ashlar, model, saved, prompt, eos):
    """Both stop after the end-of-text id, here the token that comes up latest in the continuation."""
    theirs, _ = greedy(model, prompt, 40, eos)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}))
    ours = ashlar.greedy(saved, prompt, 40)
    checks.line(f"{name}: stop after id {eos}", ours == theirs and ours[-1] == eos,
                f"{len(ours) - len(prompt)} | {len(theirs) - len(prompt)} of 40 tokens")


def check_trained(checks, ashlar, scratch, family, keys):
    text = scratch / "text.txt"
    text.write_text("\n\n".join(p.read_text() for p in sorted(ROOT.glob("docs/**/*.md"))))
    recipe, run = scratch / "tiny.toml", scratch / "run"
    recipe.write_text(RECIPE)
    ashlar.run("data", "prepare", "--input", text, "--documents", "blank-line", "--tokenizer", "byte", "--out",
               scratch / "text")
    ashlar.run("train", recipe, f"data.train={scratch / 'text'}", f"train.run_dir={run}", "train.log_every=1",
               "train.threads=1", *keys)
    losses = [row["loss"] for line in open(run / "metrics.jsonl") if "loss" in (row := json.loads(line))]
    root, native, half, parts = run / "checkpoints", scratch / "hf", scratch / "hf_bf16", scratch / "hf_parts"
    ashlar.run("ckpt", "export", root, native, "--dtype", "fp32")
    ashlar.run("ckpt", "export", root, half)
    ashlar.run("ckpt", "export", root, parts, "--dtype", "fp32", "--max-file-gb", 1e-4)
    model, model_half = load_model(native, checks), load_model(half, checks)
    ids = [4 + byte for byte in text.read_bytes()]  # the byte tokenizer
    for start in range(0, len(ids) - 64, 64):
        window = ids[start:start + 64]
        theirs, theirs_half = look(model, window), look(model_half, window)
        if min(theirs["margin"], theirs_half["margin"]) > MARGIN:
            break
    else:
        sys.exit(f"trained {family}: no window of the text gives a lead above {MARGIN}")
    trained = f"trained {family}"
    title = f"{trained}, {len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    check_scores(checks, f"{title}: fp32 export, loaded by HF", theirs, ashlar.score(root, window))
    check_scores(checks, f"{trained}: bf16 export, loaded by HF", theirs_half, ashlar.score(half, window))
    check_scores(checks, f"{trained}: fp32 export in {len(list(parts.glob('*.safetensors')))} files, loaded by HF",
                 look(load_model(parts, checks), window), ashlar.score(parts, window))
    check_round_trips(checks, trained, ashlar, native, scratch, theirs, window)
    prompts = [ids[start:start + 40] for start in range(0, 1000, 100)]
    check_greedy(checks, trained, ashlar, model, root, prompts, 60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True, help="the ashlar binary")
    args = parser.parse_args()
    torch.set_num_threads(1)  # tiny models
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ashlar, checks = Ashlar(args.ashlar), Checks()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}; numbers: Ashlar | transformers")
    parts = [check_golden, *((lambda c, a, s, n=n, v=v: check_random(c, a, s, n, v)) for n, v in RANDOM.items()),
             *((lambda c, a, s, n=n, v=v: check_trained(c, a, s, n, v)) for n, v in TRAINED.items()),
             *((lambda c, a, s, k=kind: check_texts(c, a, s, RECIPE, k)) for kind in ("bpe", "unigram"))]
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="ashlar_parity_") as scratch:
            part(checks, ashlar, pathlib.Path(scratch))
    print(f"{checks.count - checks.failed} of {checks.count} checks passed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
