#!/usr/bin/env python3
"""Writes tests/fixtures/hf_variants.json: what Hugging Face transformers computes from small models of the families of
dense models and mixtures, with the keys of config.json that change their arithmetic (biases, windows, RoPE).

Weights follow from the names of tensors in the files, so that only configs and numbers are stored.  The models run in
float64 (transformers keeps RoPE's angles in float32).  Usage: hf_variants.py OUT.json"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

IDS = [3, 17, 40, 5, 38, 22, 9, 33, 12, 30, 7, 28, 44, 19, 2, 21, 41, 16, 8, 35, 1, 26, 43, 11]
PROMPT, LENGTH = 4, 20  # of the greedy continuation
LOGITS_AT = [0, 11, 23]

BASE = dict(vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=24, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=1,
            eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
MIXTURE = dict(num_experts_per_tok=2, moe_intermediate_size=12)
FAMILY = {
    "llama": {}, "mistral": dict(sliding_window=None), "qwen2": {}, "qwen3": {},
    "mixtral": dict(num_local_experts=3, num_experts_per_tok=2),
    "qwen3_moe": dict(num_experts=3, norm_topk_prob=True, **MIXTURE),
    "qwen3_next": dict(num_experts=3, shared_expert_intermediate_size=12, linear_num_key_heads=2,
                       linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4,
                       linear_conv_kernel_dim=4, layer_types=["linear_attention", "full_attention"], **MIXTURE),
    "minimax": dict(num_local_experts=3, num_experts_per_tok=2, block_size=256,
                    layer_types=["linear_attention", "full_attention"]),
}
F, S = "full_attention", "sliding_attention"
THETA = 5e3


def rope(**keys):
    return dict(rope_parameters=dict(rope_theta=THETA, **keys))


# name, family, changes of config.json after transformers wrote it (None: the key goes)
VARIANTS = [
    ("llama with biases", "llama", dict(attention_bias=True)),
    ("llama, tied", "llama", dict(tie_word_embeddings=True)),
    ("mistral with a window", "mistral", dict(sliding_window=6)),
    ("mistral without", "mistral", {}),
    ("qwen2", "qwen2", {}),
    ("qwen2 with windows", "qwen2", dict(use_sliding_window=True, sliding_window=6, layer_types=[S, F])),
    ("qwen2 with windows from a block on", "qwen2",
     dict(use_sliding_window=True, sliding_window=6, max_window_layers=1, layer_types=None)),
    ("qwen3 with biases and windows", "qwen3",
     dict(attention_bias=True, use_sliding_window=True, sliding_window=6, layer_types=[F, S])),
    ("qwen3_moe with biases", "qwen3_moe", dict(attention_bias=True)),
    ("qwen3_moe with a window", "qwen3_moe", dict(use_sliding_window=True, sliding_window=6)),
    ("qwen3_next with biases", "qwen3_next", dict(attention_bias=True)),
    ("minimax with a window", "minimax", dict(sliding_window=6)),
    ("linear", "llama", rope(rope_type="linear", factor=4.0)),
    ("linear under old keys", "llama",
     dict(rope_parameters=None, rope_theta=THETA, rope_scaling=dict(type="linear", factor=2.5))),
    ("dynamic below its length", "llama", rope(rope_type="dynamic", factor=2.0)),
    ("dynamic beyond its length", "llama", dict(max_position_embeddings=10, **rope(rope_type="dynamic", factor=2.0))),
    ("dynamic that grows beyond it", "mistral",
     dict(max_position_embeddings=16, **rope(rope_type="dynamic", factor=3.0))),
    ("yarn", "llama", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    ("yarn, of all its positions", "qwen2", rope(rope_type="yarn", factor=2.0)),
    ("yarn, original positions at the top", "qwen3",
     dict(original_max_position_embeddings=12, **rope(rope_type="yarn", factor=4.0))),
    ("yarn with an attention factor", "llama",
     rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.8, beta_fast=4.0,
          beta_slow=0.5)),
    ("yarn with mscale, not truncated", "mistral",
     rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=8, mscale=1.4, mscale_all_dim=0.6,
          truncate=False, beta_fast=2.0)),
    ("yarn without a factor", "mixtral",
     rope(rope_type="yarn", factor=None, original_max_position_embeddings=16, mscale=0.7)),
    ("yarn of a part of a head", "qwen3_next",
     rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, partial_rotary_factor=0.5)),
    ("llama3 of all its positions", "llama",
     rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    ("llama3, original positions at the top", "llama",
     dict(original_max_position_embeddings=12,
          **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=64))),
    ("a rotated part that the family does not know", "llama", dict(partial_rotary_factor=0.5)),
    ("another name of the base", "llama", dict(rope_parameters=None, rotary_base=500000)),
]


def splitmix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def weight(name, shape):
    """Element i of a tensor: a function of splitmix64(fnv1a64(name) + i)."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 & (2**64 - 1)
    with np.errstate(over="ignore"):
        bits = splitmix64(np.uint64(key) + np.arange(int(np.prod(shape)), dtype=np.uint64))
    u = (bits >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    values = 1 + 0.1 * u if "norm.weight" in name else 0.5 * u
    return torch.from_numpy(values.reshape(shape)).float()


def model_of(family, change, directory):
    config = AutoConfig.for_model(family, **{**BASE, **FAMILY[family]})
    change = dict(change)
    if change.get("attention_bias"):
        config.attention_bias = True  # decides which tensors there are
    config.tie_word_embeddings = change.get("tie_word_embeddings", False)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    path = os.path.join(directory, "config.json")
    keys = json.load(open(path))
    for name, value in change.items():
        keys.pop(name, None) if value is None else keys.update({name: value})
    for name in ("transformers_version", "dtype"):
        keys.pop(name, None)
    json.dump(keys, open(path, "w"))
    path = os.path.join(directory, "model.safetensors")
    computed = ("slope_rate", "_decay")  # not weights
    save_file({name: t if any(word in name for word in computed) else weight(name, t.shape)
               for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager",
                                                 experts_implementation="eager")
    return keys, model.eval()


def numbers(model, family):
    # From its cache MiniMax's model with a window continues otherwise than from whole sequences.
    how = dict(do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=family != "minimax")
    ids = torch.tensor([IDS])
    logits = model(ids).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    loss.backward()
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        greedy = model.generate(torch.tensor([IDS[:PROMPT]]), max_length=LENGTH, **how)[0].tolist()
        beyond = model.generate(torch.tensor([IDS]), max_length=len(IDS) + 6, **how)[0].tolist()
    shown = {str(t): [round(x, 7) for x in logits[t].tolist()] for t in LOGITS_AT}
    return dict(loss=loss.item(), logits=shown, gradient=sum(x * x for x in norms.values())**0.5,
                grad_norm={name: float(f"{x:.9g}") for name, x in norms.items()}, greedy=greedy, continued=beyond)


def main():
    torch.manual_seed(0)
    out = dict(what=f"computed by Hugging Face transformers {transformers.__version__} in float64, eager attention, by "
               "scripts/peers/hf_variants.py; loss: mean cross entropy of ids[1:]", ids=IDS, variants=[])
    for name, family, change in VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            keys, model = model_of(family, change, directory)
            result = numbers(model, family)
            print(f"{name}: {result['loss']:.6f} {result['greedy']} {result['continued'][len(IDS):]}", flush=True)
            out["variants"].append(dict(name=name, config=keys, **result))
    with open(sys.argv[1], "w") as f:
        head = {k: v for k, v in out.items() if k != "variants"}
        f.write(json.dumps(head)[:-1] + ', "variants": [\n')
        f.write(",\n".join(json.dumps(v) for v in out["variants"]) + "\n]}\n")


transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
main()
