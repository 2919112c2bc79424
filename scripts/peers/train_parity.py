#!/usr/bin/env python3
"""Parity of training in Ashlar and in PyTorch: one set of weights, the same rows, 30 steps, loss and gradient norm.

transformers makes a random model of each family and saves it; Ashlar begins with it by init.model.  Both train on the
same rows in the same order, in several micro-batches a step, with warm-up, cosine decay, weight decay and a clip norm
that clips every step: once with AdamW (torch.optim.AdamW) for every parameter, once with Muon for the matrices of the
blocks (plain Newton-Schulz, below); each in fp32 and in fp64.  The balancing biases of ZAYA1 stay as they are in both.
Mixtral and Qwen3-MoE train with the balancing loss, which is compared too: transformers' function, called for one
mixture and one row at a time (docs/bench/train-parity.md says why).
What it found: docs/bench/train-parity.md.

Run by scripts/peers/train_parity.sh, which makes the virtual environment.
"""
import argparse
import contextlib
import json
import math
import pathlib
import sys
import tempfile
from unittest import mock

import numpy
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.zaya import modeling_zaya

from hf_models import fill_random, make_model, splitmix64
from hf_parity import ROOT, Ashlar

STEPS, BATCH, MICRO_BATCH, LENGTH, SEED = 30, 8, 2, 64, 1
SIZES = dict(vocab_size=260, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16)
# The padding id of Llama, whose head is not tied, and of Qwen3, whose head is: of the byte "e", which is in every row, so
# that it shows that the input gives no gradient to its row, and the head does.
PAD = 4 + ord("e")
# Of the mixtures' weights: all chosen experts lead by more than 2e-6 in all steps, so that rounding changes no choice.
MIXTRAL_SEED, QWEN3_MOE_SEED = 37, 33
STD = 0.1  # of weights; with 0.02 a spike of the gradient amplifies fp32's own rounding (docs/bench/train-parity.md)
OPTIM = dict(lr=3e-3, lr_min=3e-4, warmup_steps=5, weight_decay=0.1, clip_norm=0.25, beta1=0.9, beta2=0.95, eps=1e-8,
             muon_momentum=0.95, muon_scale=0.2)
AUX_COEF = 0.1  # of the balancing loss: ten times what is usual, so that it shows in the gradient
# Largest relative differences of a loss, of a gradient norm and of a balancing loss.  Rounding shows more in the norm:
# over these 30 steps PyTorch's own fp32 differs from its fp64 by up to 7e-6 there.
COMPARED = ("loss", "gradient norm", "balancing loss")
TOLERANCE = {"fp32": (1e-5, 1e-4, 1e-5), "fp64": (1e-10, 1e-10, 1e-10)}


def zaya():
    sizes = SIZES | dict(num_experts=4, moe_intermediate_size=48, router_hidden_size=16)
    layers = ["hybrid_sliding", "hybrid"] * 2
    model = make_model(dict(sizes, layer_types=layers, sliding_window=17, thetas=(1e4, 1e3)))
    fill_random(model, SEED, skip_bias=0.1)  # some tokens skip the experts
    return model, dict(sizes, layer_types=layers, sliding_window=17, rope_theta=1e4, rope_theta_sliding=1e3)


def llama():
    sizes = SIZES | dict(intermediate_size=176, rms_norm_eps=1e-6, tie_word_embeddings=False, pad_token_id=PAD)
    rope = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)
    config = transformers.LlamaConfig(**sizes, rope_parameters=rope, initializer_range=STD, eos_token_id=1,
                                      bos_token_id=2, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config), dict(
        sizes, layer_types="full_attention", rope_theta=5e5, rope_factor=8.0, rope_low_freq_factor=1.0,
        rope_high_freq_factor=4.0, rope_original_positions=32)


def qwen3():
    sizes = SIZES | dict(intermediate_size=176, rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=PAD)
    rope = dict(rope_type="default", rope_theta=1e6)
    config = transformers.Qwen3Config(**sizes, rope_parameters=rope, initializer_range=STD, eos_token_id=1,
                                      bos_token_id=2, attn_implementation="eager")
    return transformers.Qwen3ForCausalLM(config), dict(
        sizes, layer_types="full_attention", qk_norm="rms", rope_theta=1e6)


def mixtral():
    torch.manual_seed(MIXTRAL_SEED)
    sizes = SIZES | dict(num_hidden_layers=2, num_experts_per_tok=2, rms_norm_eps=1e-5, tie_word_embeddings=False)
    rope = dict(rope_type="default", rope_theta=1e6)
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, intermediate_size=48, rope_parameters=rope,
                                        initializer_range=STD, eos_token_id=1, bos_token_id=2,
                                        attn_implementation="eager", experts_implementation="eager")
    return transformers.MixtralForCausalLM(config), dict(
        sizes, num_experts=4, moe_intermediate_size=48, layer_types="attention+moe", router="linear",
        norm_topk_prob=True, rope_theta=1e6)


def qwen3_moe():
    """With dense blocks, and weights of a token's experts as the softmax over all experts has them."""
    torch.manual_seed(QWEN3_MOE_SEED)
    sizes = SIZES | dict(num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, moe_intermediate_size=48,
                         intermediate_size=176, rms_norm_eps=1e-6, tie_word_embeddings=True)
    rope = dict(rope_type="default", rope_theta=1e6)
    config = transformers.Qwen3MoeConfig(**sizes, mlp_only_layers=[1, 3], rope_parameters=rope, initializer_range=STD,
                                         eos_token_id=1, bos_token_id=2, attn_implementation="eager",
                                         experts_implementation="eager")
    layers = ["attention+moe", "attention+mlp"] * 2
    return transformers.Qwen3MoeForCausalLM(config), dict(
        sizes, layer_types=layers, router="linear", qk_norm="rms", rope_theta=1e6)


FAMILIES = {"ZAYA1": zaya, "Llama": llama, "Qwen3": qwen3, "Mixtral": mixtral, "Qwen3-MoE": qwen3_moe}


class Wide:
    """torch, of which float32 is float64."""

    def __getattr__(self, name):
        return getattr(torch, "float64" if name in ("float", "float32") else name)


@contextlib.contextmanager
def computing_in(precision):
    """transformers computes norms, softmax and RoPE in float32 whatever the model's type; here fp64 means all."""
    with contextlib.ExitStack() as stack:
        if precision == "fp64":
            for module in (modeling_llama, modeling_mixtral, modeling_qwen3, modeling_qwen3_moe, modeling_rope_utils,
                           modeling_zaya):
                stack.enter_context(mock.patch.object(module, "torch", Wide()))
            stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        yield


def permutation(size, key):
    """Ashlar's order of the samples of a dataset: a Feistel network of eight rounds over the next power of four, walked
    until the value falls into the range (docs/formats/dataset.md, ashlar/core/rng.cpp)."""
    half = ((size - 1).bit_length() + 1) // 2
    keys = []
    for _ in range(8):
        keys.append(key := splitmix64(key))

    def at(index):
        while True:
            left, right = index >> half, index & ((1 << half) - 1)
            for round_key in keys:
                left, right = right, left ^ (splitmix64(right ^ round_key) & ((1 << half) - 1))
            index = left << half | right
            if index < size:
                return index

    return [at(index) for index in range(size)]


def read_rows(prefix):
    """[STEPS, BATCH, LENGTH + 1] ids in the order of the run: sample j is tokens [j LENGTH, (j + 1) LENGTH] of .bin."""
    ids = numpy.fromfile(f"{prefix}.bin", dtype="<u2").astype(numpy.int64)
    size = (len(ids) - 1) // LENGTH
    key = splitmix64(SEED)
    for number in (0, 0):  # epoch 0 of dataset 0
        key = splitmix64(key ^ splitmix64(number))
    order = permutation(size, key)[:STEPS * BATCH]
    assert len(order) == STEPS * BATCH, "the text is shorter than the run"
    rows = numpy.stack([ids[j * LENGTH:(j + 1) * LENGTH + 1] for j in order])
    return torch.from_numpy(rows).view(STEPS, BATCH, LENGTH + 1)


def orthogonalize(x):
    """Five steps of Newton-Schulz on every matrix of x [..., rows, cols]."""
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum in Nesterov's form, orthogonalised, at a rate that gives the update AdamW's usual size."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(OPTIM["muon_momentum"]).add_(p.grad)
                update = orthogonalize(p.grad + OPTIM["muon_momentum"] * momentum)
                p.mul_(1 - group["lr"] * OPTIM["weight_decay"])
                p.sub_(group["lr"] * OPTIM["muon_scale"] * math.sqrt(max(p.shape[-2:])) * update)


def make_optimizers(model, matrices):
    """Muon takes the matrices of the blocks, stacks of experts matrix by matrix, without convolutions and a router's
    last or only matrix; AdamW takes the rest.  Weights decay; norms, biases, scales and temperatures do not."""
    by_muon, decayed, plain = [], [], []
    for name, p in model.named_parameters():
        classifier = name.endswith(("router_mlp.out_proj.weight", "mlp.gate.weight"))
        of_block = name.startswith("model.layers.") and "conv_qk" not in name and not classifier
        (plain if p.ndim == 1 else by_muon if matrices == "muon" and of_block else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": OPTIM["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizers = [torch.optim.AdamW(groups, betas=(OPTIM["beta1"], OPTIM["beta2"]), eps=OPTIM["eps"])]
    return optimizers + ([Muon(by_muon, {"lr": 0.0})] if by_muon else [])


def learning_rate(step):
    if step < OPTIM["warmup_steps"]:
        return OPTIM["lr"] * (step + 1) / OPTIM["warmup_steps"]
    part = (step - OPTIM["warmup_steps"]) / (STEPS - 1 - OPTIM["warmup_steps"])
    return OPTIM["lr_min"] + (OPTIM["lr"] - OPTIM["lr_min"]) * 0.5 * (1 + math.cos(math.pi * part))


def balancing_loss(router_logits, config):
    """Of a micro-batch, as its part of the step's: of each mixture, the mean over the rows of the step."""
    rows = [row for mixture in router_logits for row in mixture.view(-1, LENGTH, config.num_experts)]
    sums = sum(modeling_qwen3_moe.load_balancing_loss_func((row,), config.num_experts, config.num_experts_per_tok)
               for row in rows)
    return AUX_COEF * sums / BATCH


def train_torch(model, rows, matrices, balanced):
    """Loss and gradient norm of every step, and the balancing loss where there is one."""
    optimizers, history = make_optimizers(model, matrices), []
    for step, batch in enumerate(rows):
        loss = aux = 0.0
        for part in batch.split(MICRO_BATCH):
            out = model(input_ids=part[:, :-1], use_cache=False, output_router_logits=balanced)
            micro = cross_entropy(out.logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum") / (BATCH * LENGTH)
            micro_aux = balancing_loss(out.router_logits, model.config) if balanced else torch.zeros(())
            (micro + micro_aux).backward()
            loss += micro.item()
            aux += micro_aux.item()
        gradients = [p.grad for p in model.parameters()]
        norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
        for g in gradients:
            g.mul_(min(1.0, OPTIM["clip_norm"] / norm))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            optimizer.step()
            optimizer.zero_grad()
        history.append((loss, norm, aux)[:3 if balanced else 2])
    return history


def write_recipe(path, sizes, data):
    sections = {
        "model": sizes,
        "moe": {"balance.lr": 0.0,  # the biases stay as they are
                "router_aux_loss_coef": AUX_COEF if "router" in sizes else 0.0},
        "data": dict(train=str(data), sequence_length=LENGTH, validation_fraction=0.0, document_reset=False),
        "optim": OPTIM,
        "train": dict(seed=SEED, steps=STEPS, micro_batch=MICRO_BATCH, global_batch=BATCH, eval_every=0, log_every=1,
                      threads=1),
        "checkpoint": {"every": -1},
    }
    path.write_text("".join(f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in section.items())
                            for name, section in sections.items()))


def train_ashlar(ashlar, work, *overrides):
    ashlar.run("train", work / "recipe.toml", f"train.run_dir={work / 'run'}", *overrides)
    rows = [json.loads(line) for line in open(work / "run" / "metrics.jsonl")]
    names = [name for name in ("loss", "gradient_norm", "aux_loss") if name in rows[-1]]
    return [tuple(row[name] for name in names) for row in rows if "event" not in row]


def both(ashlar, scratch, family, matrices, precision):
    """The histories of Ashlar and of PyTorch."""
    with computing_in(precision), tempfile.TemporaryDirectory(dir=scratch) as work:
        work, text = pathlib.Path(work), scratch / "text"
        torch.manual_seed(SEED)
        model, sizes = FAMILIES[family]()
        model.to(torch.float64 if precision == "fp64" else torch.float32).save_pretrained(work / "saved")
        write_recipe(work / "recipe.toml", sizes, text)
        ours = train_ashlar(ashlar, work, f"init.model={work / 'saved'}", f"optim.matrices={matrices}",
                            f"train.precision={precision}")
        return ours, train_torch(model, read_rows(text), matrices, balanced="router" in sizes)


def differences(a, b):
    """The largest relative difference of each of COMPARED that there is."""
    return [max(abs(x - y) / y for x, y in zip(p, q, strict=True)) for p, q in zip(zip(*a), zip(*b), strict=True)]


def check(ashlar, scratch, family, matrices):
    """Prints a table and a line per precision; whether all is within tolerance."""
    histories = {precision: both(ashlar, scratch, family, matrices, precision) for precision in TOLERANCE}
    title = f"{family}, {'AdamW' if matrices == 'adamw' else 'Muon'}"
    print(f"\n{title}\n{'step':>4} {'loss':>12} {'PyTorch':>12} {'relative':>9} {'norm':>13} {'PyTorch':>12} "
          f"{'relative':>9}")
    for step, ((loss, norm, *_), (loss_p, norm_p, *_)) in enumerate(zip(*histories["fp32"]), 1):
        if step == 1 or step % 5 == 0:
            print(f"{step:4} {loss:12.8f} {loss_p:12.8f} {abs(loss - loss_p) / loss_p:9.1e}  "
                  f"{norm:12.8f} {norm_p:12.8f} {abs(norm - norm_p) / norm_p:9.1e}")
    passed = True
    for precision, (ours, theirs) in histories.items():
        largest = differences(ours, theirs)
        clipped = sum(n > OPTIM["clip_norm"] for _, n, *_ in ours)
        ok = all(d <= most for d, most in zip(largest, TOLERANCE[precision])) and len(ours) == STEPS
        passed = passed and ok
        said = ", ".join(f"{d:.1e} of a {name} (at most {most:.0e})"
                         for d, name, most in zip(largest, COMPARED, TOLERANCE[precision]))
        print(f"{'ok  ' if ok else 'FAIL'}  {title}, {precision}: {len(ours)} steps, {clipped} clipped, largest "
              f"relative difference {said}")
    own = " and ".join(f"{d:.1e}" for d in differences(histories["fp32"][1], histories["fp64"][1]))
    print(f"note  {title}: PyTorch's own fp32 differs from its fp64 by {own}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True, help="the ashlar binary")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only this one; may be repeated")
    args = parser.parse_args()
    torch.set_num_threads(1)  # tiny models
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ashlar = Ashlar(args.ashlar)
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}; {STEPS} steps of {BATCH} x {LENGTH} "
          f"tokens")
    with tempfile.TemporaryDirectory(prefix="ashlar_parity_") as scratch:
        scratch = pathlib.Path(scratch)
        ashlar.run("data", "prepare", "--input", ROOT / "tests/fixtures/vectors/stones.txt", "--documents",
                   "blank-line", "--tokenizer", "byte", "--out", scratch / "text")
        passed = [check(ashlar, scratch, family, matrices)
                  for family in args.family or FAMILIES for matrices in ("adamw", "muon")]
    print(f"\n{sum(passed)} of {len(passed)} trainings agree")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
