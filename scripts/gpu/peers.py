#!/usr/bin/env python3
"""The peers of Ashlar's ops and steps on one card: PyTorch, compiled where that helps.

    peers.py SHAPES SECONDS [--device cpu]

Needs torch and, for whole steps, transformers from 5.13 on; installs nothing.  With --device cpu it computes on the CPU,
to try it with small sizes (shapes-small.txt): what PyTorch has for GPUs alone then says so.  Prints a JSON object a line:
the name that `gpu_tool bench` gives the same op, behind a comma whose it is, and the value in the same unit.  The order
is that of the file, from which an op takes all its sizes; what does not run says why.  Backward passes of attention are
the deterministic ones, as Ashlar's are.  Exit code 3: no card; 4: no PyTorch.
"""
import argparse
import json
import re
import statistics
import sys
import time

BEGIN = time.monotonic()


def say(**record):
    print(json.dumps(record, separators=(",", ":")), flush=True)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("shapes")
parser.add_argument("seconds", type=float)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
options = parser.parse_args()
DEVICE = options.device

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    say(name="peers", text=f"no PyTorch: {error}")
    sys.exit(4)
if DEVICE == "cuda" and not torch.cuda.is_available():
    say(name="peers", text="no card that PyTorch knows")
    sys.exit(3)

synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
torch.manual_seed(1)
torch._dynamo.config.automatic_dynamic_shapes = False  # one shape, one program
torch._functorch.config.donated_buffer = False  # a backward pass is run again and again


def noise(*shape, dtype=torch.bfloat16, grad=False):
    return torch.rand(shape, device=DEVICE).mul_(2).sub_(1).to(dtype).requires_grad_(grad)


def seconds(run):
    """Median of five groups of runs, as gpu_tool takes it."""
    def group(runs):
        synchronize()
        begin = time.perf_counter()
        for _ in range(runs):
            run()
        synchronize()
        return (time.perf_counter() - begin) / runs
    group(2)
    runs = max(1, min(100, int(10e-3 / group(1))))
    return statistics.median(group(runs) for _ in range(5))


def value(name, work, run):
    say(name=name, value=float(f"{work / seconds(run):.5g}"))


def backward_of(y, inputs):
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def product(name, tokens, n, k):
    x, dy, w = noise(tokens, k), noise(tokens, n), noise(n, k)
    work = 2e-12 * tokens * n * k
    value(f"{name} forward, matmul", work, lambda: x @ w.T)
    value(f"{name} backward_input, matmul", work, lambda: dy @ w)
    value(f"{name} backward_weight, matmul", work, lambda: dy.T @ x)


def grouped(name, experts, rows, n, k):
    total = experts * rows
    ends = [e * rows + (rows // 4 if e % 2 else -rows // 4) for e in range(1, experts)] + [total]
    ends = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    x, w = noise(total, k, grad=True), noise(experts, n, k, grad=True)
    multiply = getattr(F, "grouped_mm", None) or torch._grouped_mm
    run = lambda: multiply(x, w.transpose(-2, -1), offs=ends)
    work = 2e-12 * total * n * k
    with torch.no_grad():
        value(f"{name} forward, grouped_mm", work, run)
    y = run()
    value(f"{name} backward_input, grouped_mm", work, backward_of(y, (x,)))
    value(f"{name} backward_weight, grouped_mm", work, backward_of(y, (w,)))


def attention(name, documents, tokens, heads, kv_heads, dim, window=0):
    q, k, v = (noise(documents, tokens, n, dim, grad=True).transpose(1, 2) for n in (heads, kv_heads, kv_heads))
    seen = min(window or tokens, tokens)
    pairs = 1e-12 * documents * (tokens * seen - seen * (seen - 1) / 2) * dim * heads
    grouped_queries = heads != kv_heads

    def measure(whose, run):
        with torch.no_grad():
            value(f"{name} forward, {whose}", 4 * pairs, run)
        torch.use_deterministic_algorithms(True)
        try:
            value(f"{name} backward, {whose}", 10 * pairs, backward_of(run(), (q, k, v)))
        finally:
            torch.use_deterministic_algorithms(False)

    if window:  # scaled_dot_product_attention has none
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        mask = create_block_mask(lambda b, h, i, j: (j <= i) & (i - j < seen), None, None, tokens, tokens, device=DEVICE)
        flex = torch.compile(flex_attention)
        return measure("flex", lambda: flex(q, k, v, block_mask=mask, enable_gqa=grouped_queries))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        def run(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped_queries)
        attempt(f"{name}, {backend.name}", lambda: measure(backend.name, run))


def row_op(name, run, inputs, forward_work, backward_work):
    run = torch.compile(run)
    with torch.no_grad():
        value(f"{name} forward, compiled", forward_work, lambda: run(*inputs))
    value(f"{name} backward, compiled", backward_work, backward_of(run(*inputs), inputs))


def rms_norm(name, tokens, width):
    work = 2e-9 * tokens * width
    row_op(name, lambda x, w: F.rms_norm(x, (width,), w, 1e-5), (noise(tokens, width, grad=True), noise(width, grad=True)),
           2 * work, 3 * work)


def swiglu(name, tokens, width):
    def run(x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    work = 2e-9 * tokens * width
    row_op(name, run, (noise(tokens, 2 * width, grad=True),), 3 * work, 5 * work)


def cross_entropy(name, tokens, classes):
    logits = noise(tokens, classes, grad=True)
    targets = torch.arange(tokens, device=DEVICE) * 7919 % classes
    loss = torch.compile(lambda x, t: F.cross_entropy(x.float(), t))
    value(f"{name}, compiled", 6e-9 * tokens * classes, lambda: torch.autograd.grad(loss(logits, targets), logits))


def adamw(name, elements):
    weight = noise(elements, dtype=torch.float32)
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    value(f"{name}, fused", 28e-9 * elements, optimizer.step)


def newton_schulz(name, matrices, m, n):
    def run(x):
        for _ in range(5):
            a = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
        return x
    x = noise(matrices, m, n) / (m * n) ** 0.5
    run = torch.compile(run)
    small, large = min(m, n), max(m, n)
    value(f"{name}, compiled", 5e-12 * matrices * small * small * (4 * large + 2 * small), lambda: run(x))


def train(name, parameters, loss_of, classes, batch, length):
    """Steps in bf16 by autocast with fused AdamW; tokens a second."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    text = torch.randint(classes, (batch, length + 1), device=DEVICE)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    value(f"{name} step, PyTorch", batch * length, step)


def sizes_of_model(keys, **others):
    """The keys of a recipe's model, which have the names of transformers."""
    return others | {key.removeprefix("model."): number for key, number in keys.items() if key.startswith("model.")}


def llama(name, keys):
    """A decoder of Llama's kind with a tied head."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(**sizes_of_model(keys, num_key_value_heads=8, head_dim=128), tie_word_embeddings=True)
    causal_model(name, LlamaForCausalLM(config), config, keys, dtype=torch.float32)


def zaya(name, keys):
    from transformers import ZayaConfig, ZayaForCausalLM
    config = ZayaConfig(**sizes_of_model(keys), layer_types=["hybrid"] * keys["model.num_hidden_layers"])
    # Weights of experts go to grouped_mm as they are, which autocast does not reach: bf16.
    causal_model(name, ZayaForCausalLM(config), config, keys, dtype=torch.bfloat16)


def causal_model(name, model, config, keys, dtype):
    model = model.to(DEVICE, dtype).train()
    compiled = torch.compile(model)
    loss_of = lambda ids, targets: compiled(input_ids=ids, labels=ids, shift_labels=targets.contiguous(), use_cache=False).loss
    train(name, list(model.parameters()), loss_of, config.vocab_size, keys["train.micro_batch"],
          keys.get("data.sequence_length", 4096))


def step(name, *words):
    recipe = words[4]
    keys = {key: int(number) for key, number in re.findall(r"(\S+)=(\d+)(?!\S)", " ".join(words[5:]))}
    (zaya if "zaya" in recipe else llama)(name, keys)


def attempt(name, run):
    try:
        run()
    except Exception as error:  # a peer that is absent or too large ends neither the others nor the window
        say(name=name, text=re.sub(r'[\s"\\]+', " ", f"{type(error).__name__}: {error}")[:200])


def main(path, most_seconds):
    for line in open(path):
        kind, *words = line.split() or ["#"]
        if kind.startswith("#"):
            continue
        if time.monotonic() - BEGIN > most_seconds:
            say(name=words[0], text="no time left")
            continue
        arguments = words[1:] if kind == "step" else [int(word) for word in words[1:]]
        attempt(words[0], lambda: globals()[kind](words[0], *arguments))
        torch.cuda.empty_cache()


main(options.shapes, options.seconds)
