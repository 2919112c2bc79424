"""The models of hf_parity.py and train_parity.py: their shapes, recipes and weights."""
import torch
from transformers import ZayaConfig, ZayaForCausalLM

MASK = 2**64 - 1

TINY = dict(vocab_size=11, hidden_size=8, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=4, num_experts=3, moe_intermediate_size=5, router_hidden_size=6,
            layer_types=["hybrid", "hybrid_sliding", "hybrid"], sliding_window=3, thetas=(1e4, 100.0))
RANDOM = {
    "windows, 3 query heads a kv head": dict(
        vocab_size=301, hidden_size=96, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        num_experts=5, moe_intermediate_size=40, router_hidden_size=24,
        layer_types=["hybrid_sliding", "hybrid"] * 3, sliding_window=9, thetas=(5e6, 1e4)),
    "4 kv heads, ungrouped": dict(
        vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        num_experts=8, moe_intermediate_size=24, router_hidden_size=12, layer_types=["hybrid"] * 3, thetas=(1e4, None)),
    "skip class selected": dict(
        vocab_size=200, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        num_experts=4, moe_intermediate_size=32, router_hidden_size=16, layer_types=["hybrid"] * 4, thetas=(1e4, None),
        skip_bias=0.2),
}
RECIPE = """
[model]
vocab_size = 260
hidden_size = 64
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 16
num_experts = 4
moe_intermediate_size = 48
router_hidden_size = 16
layer_types = "alternate"
sliding_window = 17
[init]
std = 0.15           # far from uniform routing, so that the chosen expert leads clearly
[data]
sequence_length = 64
[optim]
lr = 5e-3
warmup_steps = 2
[train]
steps = 60
micro_batch = 2
global_batch = 4
precision = "fp32"
eval_every = 0
[checkpoint]
every = 0
"""

MIXTURE = ["model.router=linear", "model.num_experts_per_tok=2", "model.norm_topk_prob=true",
           "moe.router_aux_loss_coef=0.01", "train.steps=400"]
# Families of which a model is trained, with what each changes in the recipe.
TRAINED = {
    "ZAYA1": [],
    "Mixtral": [*MIXTURE, "model.layer_types=attention+moe", "model.tie_word_embeddings=false"],
    "Qwen3-MoE": [*MIXTURE, 'model.layer_types=["attention+moe", "attention+mlp"]', "model.intermediate_size=96",
                  "model.qk_norm=rms"],
}


def make_model(shape):
    shape = dict(shape)
    full, sliding = shape.pop("thetas")
    shape.pop("skip_bias", None)
    rope = {name: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for name, theta in (("hybrid", full), ("hybrid_sliding", sliding)) if theta is not None}
    config = ZayaConfig(**shape, rope_parameters=rope, eos_token_id=1, attn_implementation="eager",
                        experts_implementation="eager", dtype="float32")
    return ZayaForCausalLM(config).eval()


def tensors_of(model):
    return [(name, t) for name, t in model.state_dict(keep_vars=True).items() if name != "lm_head.weight"]


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def fill_golden(model):
    """Element i of a tensor from splitmix64(fnv1a64(name) + i): the weights of tests/fixtures/zaya1_tiny.json."""
    for name, tensor in tensors_of(model):
        key = 0xCBF29CE484222325
        for byte in name.encode():
            key = (key ^ byte) * 0x100000001B3 & MASK
        u = torch.tensor([(splitmix64((key + i) & MASK) >> 40) / 2**23 - 1 for i in range(tensor.numel())],
                         dtype=torch.float64)
        if name.endswith("balancing_biases"):
            u = 0.05 * u
            u[-1] = -1.0
        elif name.endswith("_scale") or "norm.weight" in name or "layernorm" in name:
            u = 1 + 0.1 * u
        elif name.endswith("temp"):
            u = 1.5 + 0.5 * u
        else:
            u = (0.1 if name.endswith("bias") else 0.6) * u
        tensor.data.copy_(u.view(tensor.shape))


def fill_random(model, seed, skip_bias):
    """Scales at which fp32's own rounding (against an fp64 run) is about 1e-6 of the largest logit.  Sharper routers,
    with logits of about 40, raise it to 2e-5 in both programs, and two fp32 results then cannot agree to 1e-5."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors_of(model):
        n = torch.randn(tensor.shape, generator=generator)
        if name.endswith("balancing_biases"):
            n *= 0.05
            n[-1] = skip_bias
        elif name.endswith(("_scale", "temp")) or "norm.weight" in name or "layernorm" in name:
            n = 1 + 0.2 * n
        elif name.endswith("bias"):
            n *= 0.02  # not so large that every token gets the same continuation
        elif "conv_qk" in name:
            n *= 0.3
        elif "embed_tokens" in name:
            n *= 0.1  # small, or the tied head repeats the last token for ever
        else:
            n *= (2.0 if "router_mlp" in name else 1.0) / tensor.shape[-1] ** 0.5
        tensor.data.copy_(n)
