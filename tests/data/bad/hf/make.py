#!/usr/bin/env python3
"""Writes the malformed Hugging Face directories beside this file: one small valid model of one
block (V 8, H 4, one head pair of 2, two experts of 2, router 2), each copy with one thing wrong."""
import json
import os
import shutil
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = {
    "architectures": ["ZayaForCausalLM"], "model_type": "zaya", "dtype": "float32",
    "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 2, "router_hidden_size": 2, "rms_norm_eps": 1e-05, "cca_time0": 2,
    "cca_time1": 2, "layer_types": ["hybrid"], "sliding_window": None, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 1, "tie_word_embeddings": True, "attention_bias": False,
    "lm_head_bias": False, "hidden_act": "silu", "attention_dropout": 0.0,
    "max_position_embeddings": 64,
    "rope_parameters": {"hybrid": {"rope_type": "default", "rope_theta": 10000.0,
                                   "partial_rotary_factor": 0.5}},
}
LEGACY = {
    "architectures": ["ZayaForCausalLM"], "model_type": "zaya", "vocab_size": 8, "hidden_size": 4,
    "zaya_layers": ["a", 2], "num_hidden_layers": 3, "cca_num_q_heads": [2, 0],
    "num_query_groups_list": [1, 0], "kv_channels": 4, "ffn_hidden_size_list": [0, 4],
    "zaya_mlp_expansion": [0, 2], "eos_token_id": 1, "rope_theta": 10000.0, "clamp_temp": False,
}


def tensors():
    block = "model.layers.0."
    qkv, gate = block + "self_attn.qkv_proj.", block + "mlp.gate."
    shapes = {
        "model.embed_tokens.weight": [8, 4], "model.input_hidden_states_scale": [4],
        "model.input_hidden_states_bias": [4], "model.norm.weight": [4],
        block + "input_layernorm.weight": [4], block + "post_attention_layernorm.weight": [4],
        qkv + "q_proj.weight": [8, 4], qkv + "k_proj.weight": [4, 4],
        qkv + "v_proj_current.weight": [2, 4], qkv + "v_proj_delayed.weight": [2, 4],
        qkv + "conv_qk_depthwise.weight": [12, 1, 2], qkv + "conv_qk_depthwise.bias": [12],
        qkv + "conv_qk_grouped.weight": [12, 4, 2], qkv + "conv_qk_grouped.bias": [12],
        block + "self_attn.qk_norm.temp": [1], block + "self_attn.o_proj.weight": [4, 8],
        gate + "down_proj.weight": [2, 4], gate + "down_proj.bias": [2],
        gate + "router_mlp.norm.weight": [2], gate + "router_mlp.fc1.weight": [2, 2],
        gate + "router_mlp.fc1.bias": [2], gate + "router_mlp.fc2.weight": [2, 2],
        gate + "router_mlp.fc2.bias": [2], gate + "router_mlp.out_proj.weight": [3, 2],
        gate + "balancing_biases": [3], block + "mlp.experts.gate_up_proj": [2, 4, 4],
        block + "mlp.experts.down_proj": [2, 4, 2],
    }
    for merge in ("post_attention", "post_mlp"):
        for name in ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"):
            shapes[f"{block}{merge}_residual_scale.{name}"] = [4]
    return {name: ("F32", shape) for name, shape in shapes.items()}


WIDTH = {"F32": 4, "BF16": 2, "I64": 8}


def header_of(named):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape) in sorted(named.items()):
        count = 1
        for extent in shape:
            count *= extent
        size = count * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + size]}
        data += b"\0" * size
    return header, data


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write(case, config=CONFIG, **files):
    directory = os.path.join(HERE, case)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config, indent=1) + "\n"
        with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
            f.write(text)
    for name, content in files.items():
        name = name.replace("_dot_", ".")
        with open(os.path.join(directory, name), "wb") as f:
            f.write(content)


def config_cases():
    for case, change in {
        "model-type": {"model_type": "gpt2"}, "top-k": {"num_experts_per_tok": 2},
        "clamp-temp": {"clamp_temp": True}, "untied": {"tie_word_embeddings": False},
        "attention-bias": {"attention_bias": True}, "three-taps": {"cca_time0": 3},
        "heads": {"num_attention_heads": 3, "num_key_value_heads": 2},
        "window-without-blocks": {"sliding_window": 16},
        "sliding-without-window": {"layer_types": ["hybrid_sliding"]},
        "layer-types": {"layer_types": ["hybrid", "hybrid"]},
        "negative-size": {"hidden_size": -4}, "size-as-text": {"hidden_size": "4"},
        "scaled-rope": {"rope_parameters": {"hybrid": {"rope_type": "yarn", "rope_theta": 1e4}}},
        "quantized": {"quantization_config": {"quant_method": "fp8"}},
    }.items():
        write("config-" + case, {**CONFIG, **change})
    write("config-invalid-json", '{"model_type": "zaya", "hidden_size": }\n')
    write("config-duplicate-key", '{"model_type": "zaya", "vocab_size": 8, "vocab_size": 9}\n')
    write("config-no-sizes", {"model_type": "zaya"})
    write("config-missing-size", {k: v for k, v in CONFIG.items() if k != "router_hidden_size"})
    write("config-alias-differs", {**LEGACY, "rotary_base": 500.0})
    write("config-odd-sub-layers", {**LEGACY, "zaya_layers": ["a", 2, "a"],
                                    "cca_num_q_heads": [2, 0, 2], "num_query_groups_list": [1, 0, 1],
                                    "ffn_hidden_size_list": [0, 4, 0], "zaya_mlp_expansion": [0, 2, 0]})
    write("config-list-lengths", {**LEGACY, "cca_num_q_heads": [2, 0, 2, 0]})
    write("config-uneven-experts", {**LEGACY, "zaya_layers": ["a", 2, "a", 3],
                                    "cca_num_q_heads": [2, 0, 2, 0],
                                    "num_query_groups_list": [1, 0, 1, 0],
                                    "ffn_hidden_size_list": [0, 4, 0, 4],
                                    "zaya_mlp_expansion": [0, 2, 0, 2]})


def main():
    good = tensors()
    header, data = header_of(good)
    single = "model_dot_safetensors"
    config_cases()
    write("config-missing", None, **{single: safetensors(header, data)})
    write("no-weights")
    write("pickle-only", pytorch_model_dot_bin=b"\x80\x02}q\x00.")

    def variant(case, change):
        named = dict(good)
        change(named)
        write(case, **{single: safetensors(*header_of(named))})

    norm, temp = "model.norm.weight", "model.layers.0.self_attn.qk_norm.temp"
    variant("tensor-missing", lambda t: t.pop("model.layers.0.mlp.gate.down_proj.bias"))
    variant("tensor-extra", lambda t: t.update({"model.layers.0.mlp.shared.weight": ("F32", [4])}))
    variant("tensor-shape", lambda t: t.update({norm: ("F32", [2, 2])}))
    variant("tensor-dtype", lambda t: t.update({norm: ("I64", [4])}))
    variant("heads-disagree", lambda t: t.update({temp: ("F32", [2])}))
    variant("blocks-disagree", lambda t: t.update({"model.layers.1.input_layernorm.weight": ("F32", [4])}))
    variant("router-state-in-block-0",
            lambda t: t.update({"model.layers.0.mlp.gate.router_states_scale": ("F32", [2])}))
    other = {**good, "lm_head.weight": ("F32", [8, 4])}
    head_header, head_data = header_of(other)
    begin = head_header["lm_head.weight"]["data_offsets"][0]
    head_data = head_data[:begin] + struct.pack("<f", 1.5) + head_data[begin + 4:]
    write("head-differs", **{single: safetensors(head_header, head_data)})

    def broken(case, content):
        write(case, **{single: content})

    broken("header-empty", b"")
    broken("header-too-long", struct.pack("<Q", 1 << 40) + b"{}")
    broken("header-past-end", struct.pack("<Q", 4096) + b"{}      ")
    broken("header-not-json", safetensors(b"{model.norm.weight}", b""))
    broken("header-fp8", safetensors(json.dumps(
        {**header, norm: {**header[norm], "dtype": "F8_E4M3"}}).encode(), data))
    broken("data-truncated", safetensors(header, data[:-8]))
    broken("data-trailing", safetensors(header, data + b"\0" * 8))
    overlap = json.loads(json.dumps(header))
    overlap[norm]["data_offsets"] = [offset - 4 for offset in overlap[norm]["data_offsets"]]
    broken("offsets-overlap", safetensors(overlap, data))
    size = json.loads(json.dumps(header))
    size[norm]["shape"] = [1 << 40, 1 << 40]
    broken("shape-overflow", safetensors(size, data))

    def sharded(case, weight_map, shards, **more):
        files = {f"{name}": content for name, content in shards.items()}
        files["model.safetensors.index.json"] = json.dumps(
            {"metadata": {"total_size": len(data)}, "weight_map": weight_map}).encode()
        write(case, **files, **more)

    names = sorted(good)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    cut = {name: (one if n < len(names) // 2 else two) for n, name in enumerate(names)}
    first = safetensors(*header_of({n: good[n] for n in names if cut[n] == one}))
    second_names = [n for n in names if cut[n] == two]
    second = safetensors(*header_of({n: good[n] for n in second_names}))
    sharded("index-missing-shard", cut, {one: first})
    sharded("index-path", {**cut, norm: "../model.safetensors"}, {one: first, two: second})
    sharded("index-names-absent-tensor", {**cut, "model.extra.weight": two}, {one: first, two: second})
    sharded("index-lacks-tensor", {k: v for k, v in cut.items() if k != norm},
            {one: first, two: second})
    sharded("tensor-twice", cut,
            {one: safetensors(*header_of({n: good[n] for n in names if cut[n] == one or n == norm})),
             two: second})
    sharded("index-and-single", cut, {one: first, two: second,
                                      "model.safetensors": safetensors(header, data)})
    write("index-empty", **{"model.safetensors.index.json": b'{"metadata": {}, "weight_map": {}}'})


main()
