#!/usr/bin/env python3
"""Tokens per second of text: `ashlar serve` and `ashlar generate` against transformers' generate and llama.cpp.

A Llama of 125 M parameters with random weights gets 1 and 16 prompts of 64 tokens and makes 64 tokens of each, greedily.
All run in turns, again and again, so that a machine whose speed drifts drifts for all of them; each gets its median.
Rates are those of new tokens; reading the prompts is part of the time, loading the model is not.

  serve            16 clients at once, each with one request
  generate         all prompts in one process
  transformers     generate() of one batch, fp32, on PyTorch
  llama.cpp        its library by llama-cpp-python: a batch with a sequence for each prompt; weights of fp32 and Q8_0,
                   and a cache of fp16, which is its default

Run by scripts/peers/serve_speed.sh, which makes the virtual environment.
"""
import argparse
import atexit
import concurrent.futures
import ctypes
import importlib.util
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hf_parity import Ashlar
from service import Service

PROMPT = NEW = 64  # tokens
BATCHES = (1, 16)
CONTEXT = 256
HEADS, KEY_HEADS = 12, 4
SHAPE = dict(vocab_size=32000, hidden_size=768, num_hidden_layers=12, num_attention_heads=HEADS, head_dim=64,
             num_key_value_heads=KEY_HEADS, intermediate_size=2048, max_position_embeddings=2048, tie_word_embeddings=False)
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def make_model(directory):
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, bos_token_id=None, eos_token_id=None)).eval()
    model.save_pretrained(directory)
    (directory / "tokenizer.model").write_text("ashlar byte tokenizer 1\n")
    return model


def make_prompts():
    rng = random.Random(7)
    return ["".join(rng.choice(LETTERS) for _ in range(PROMPT)) for _ in range(max(BATCHES))]


def ids_of(prompt):
    return [4 + byte for byte in prompt.encode()]


class Served:
    """One request for each prompt, all at once."""

    def __init__(self, ashlar, model, *flags):
        self.service = Service(ashlar, model, "--context", str(CONTEXT), *flags).__enter__()
        atexit.register(self.close)  # also where a contender fails

    def run(self, prompts):
        def ask(prompt):
            body = {"prompt": ids_of(prompt), "max_tokens": NEW, "temperature": 0, "logprobs": 0}
            request = urllib.request.Request(self.service.url + "/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            return json.loads(urllib.request.urlopen(request).read())["usage"]["completion_tokens"]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as clients:
            start = time.perf_counter()
            made = sum(clients.map(ask, prompts))
            seconds = time.perf_counter() - start
        assert made == NEW * len(prompts), made
        return seconds

    def close(self):
        self.service.__exit__()


class Generated:
    """The time that `ashlar generate` says, which leaves out loading."""

    def __init__(self, ashlar, model, scratch, *flags):
        self.ashlar, self.model, self.file, self.flags = ashlar, model, scratch / "prompts.jsonl", flags
        self.ids = {}

    def run(self, prompts):
        self.file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        done = subprocess.run([self.ashlar.binary, "generate", "--model", str(self.model), "--prompt-file", str(self.file),
                               "--max-tokens", str(NEW), "--temperature", "0", "--ignore-eos", "--json", "--dtype", "fp32",
                               *self.flags], capture_output=True, text=True, check=True)
        rows = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
        assert [row[-NEW - PROMPT:-NEW] for row in rows] == [ids_of(prompt) for prompt in prompts]
        self.ids[len(prompts)] = [row[-NEW:] for row in rows]
        words = done.stderr.split(" tokens in ")
        assert words[0].split()[-1].replace(",", "") == str(NEW * len(prompts)), done.stderr
        return float(words[1].split()[0])

    def close(self):
        pass


class Transformers:
    def __init__(self, model):
        self.model, self.ids = model, {}

    @torch.no_grad()
    def run(self, prompts):
        ids = torch.tensor([ids_of(prompt) for prompt in prompts])
        start = time.perf_counter()
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                                  pad_token_id=0)
        seconds = time.perf_counter() - start
        self.ids[len(prompts)] = out[:, -NEW:].tolist()
        assert out.shape[1] == PROMPT + NEW
        return seconds

    def close(self):
        pass


def write_gguf(model, path, quantized):
    """The weights in llama.cpp's names; rotated pairs of a head are neighbours there, and halves apart in transformers."""
    import gguf
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(SHAPE["vocab_size"])
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(SHAPE["head_dim"])
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType.Q8_0

    def add(name, weight, heads=0):
        values = weight.detach().numpy()
        if heads:
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if quantized and values.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))

    body = model.model
    add("token_embd.weight", body.embed_tokens.weight)
    add("output_norm.weight", body.norm.weight)
    add("output.weight", model.lm_head.weight)
    for i, layer in enumerate(body.layers):
        mixer, mlp = layer.self_attn, layer.mlp
        for name, weight, heads in (
                ("attn_norm", layer.input_layernorm, 0), ("attn_q", mixer.q_proj, HEADS), ("attn_k", mixer.k_proj, KEY_HEADS),
                ("attn_v", mixer.v_proj, 0), ("attn_output", mixer.o_proj, 0), ("ffn_norm", layer.post_attention_layernorm, 0),
                ("ffn_gate", mlp.gate_proj, 0), ("ffn_up", mlp.up_proj, 0), ("ffn_down", mlp.down_proj, 0)):
            add(f"blk.{i}.{name}.weight", weight.weight, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """Prompts as the sequences of one context, as its server runs them."""

    def __init__(self, path, threads):
        import llama_cpp
        self.lib, self.ids = llama_cpp, {}
        llama_cpp.llama_backend_init()
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p())
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        flags = llama_cpp.llama_context_default_params()
        flags.n_ctx, flags.n_batch, flags.n_ubatch = CONTEXT * max(BATCHES), 1024, 512
        flags.n_seq_max, flags.n_threads, flags.n_threads_batch = max(BATCHES), threads, threads
        self.context = llama_cpp.llama_init_from_model(self.model, flags)
        assert self.model and self.context
        self.batch = llama_cpp.llama_batch_init(1024, 0, 1)

    def decode(self, tokens):
        """tokens: (id, position, sequence, whether its logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        assert self.lib.llama_decode(self.context, batch) == 0
        V = SHAPE["vocab_size"]
        best = []
        for i, (*_, wanted) in enumerate(tokens):
            if wanted:
                logits = self.lib.llama_get_logits_ith(self.context, i)
                best.append(int(np.argmax(np.ctypeslib.as_array(logits, (V,)))))
        return best

    def run(self, prompts):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        made = [[] for _ in prompts]
        start = time.perf_counter()
        for sequence, prompt in enumerate(prompts):
            ids = ids_of(prompt)
            made[sequence] += self.decode([(id, t, sequence, t == len(ids) - 1) for t, id in enumerate(ids)])
        for step in range(NEW - 1):
            best = self.decode([(ids[-1], PROMPT + step, sequence, True) for sequence, ids in enumerate(made)])
            for ids, id in zip(made, best, strict=True):
                ids.append(id)
        seconds = time.perf_counter() - start
        self.ids[len(prompts)] = made
        return seconds

    def close(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def contenders_of(ashlar, scratch, threads):
    directory = scratch / "model"
    model = make_model(directory)
    count = sum(p.numel() for p in model.parameters())
    cache = 2 * KEY_HEADS * SHAPE["head_dim"] * SHAPE["num_hidden_layers"]
    print(f"{count / 1e6:.0f} M parameters; a pass reads {(count - model.model.embed_tokens.weight.numel()) * 4 / 1e6:.0f} MB "
          f"of weights in fp32, and {cache * 4 / 1e3:.0f} KB of cache for each token before")
    all_of_them = {"serve": Served(ashlar, directory), "generate": Generated(ashlar, directory, scratch),
                   "transformers": Transformers(model), "serve, int8": Served(ashlar, directory, "--weights", "int8")}
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        for name, quantized in (("llama.cpp", False), ("llama.cpp, Q8_0", True)):
            path = scratch / f"{quantized}.gguf"
            write_gguf(model, path, quantized)
            all_of_them[name] = LlamaCpp(path, threads)
    else:
        print("llama.cpp: not run; pip install llama-cpp-python gguf", file=sys.stderr)
    return all_of_them


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ashlar", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch and llama.cpp")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts = make_prompts()
    with tempfile.TemporaryDirectory() as name:
        contenders = contenders_of(Ashlar(args.ashlar), pathlib.Path(name), args.threads)
        seconds = {(who, batch): [] for who in contenders for batch in BATCHES}
        for turn in range(args.rounds + 1):
            for who, contender in contenders.items():
                for batch in BATCHES:
                    took = contender.run(prompts[:batch])
                    if turn > 0:  # the first warms up
                        seconds[who, batch].append(took)
                    print(f"turn {turn}: {who}, {batch} prompts: {took:.2f} s", file=sys.stderr)
        for contender in contenders.values():
            contender.close()
    for batch in BATCHES:
        ours = seconds["serve", batch]
        for who in contenders:
            took = seconds[who, batch]
            rate = NEW * batch / statistics.median(took)
            ratio = statistics.median(t / o for t, o in zip(took, ours, strict=True))
            print(f"{batch:2} prompts  {who:16} {rate:7.1f} tokens/s ({NEW * batch / max(took):.1f} to "
                  f"{NEW * batch / min(took):.1f}); serve is {ratio:.2f} times as fast")
    for who in ("transformers", "llama.cpp"):
        if who in contenders:
            for batch in BATCHES:
                pairs = list(zip(contenders["generate"].ids[batch], contenders[who].ids[batch], strict=True))
                same = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
                print(f"{batch:2} prompts: {same} of {NEW * batch} tokens of generate are those of {who}")


if __name__ == "__main__":
    main()
