"""Holds `ashlar eval` and `ashlar serve` to lm-eval, transformers and OpenAI's client.  Run by lm_eval.sh.

The tasks are lm-eval's hellaswag, arc_easy, mmlu, lambada_openai and gsm8k as it has them, with rows made here of words
of the corpus in place of the published ones, without examples in prompts and with them.
"""
import argparse
import importlib.util
import json
import pathlib
import random
import sys
import tempfile

for package in ("lm_eval", "aiohttp", "tenacity", "openai"):
    if importlib.util.find_spec(package) is None:
        print(f"skipped: {package} is not installed in {sys.prefix}", file=sys.stderr)
        sys.exit(77)

import lm_eval
import openai
import torch
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_models import RECIPE
from hf_parity import Ashlar, Checks
from hf_texts import RECIPE_FLAGS, corpus
from service import Service

TASKS = pathlib.Path(lm_eval.__file__).parent / "tasks"
YAML = {"hellaswag": "hellaswag/hellaswag.yaml", "arc": "arc/arc_easy.yaml", "mmlu": "mmlu/default/_default_template_yaml",
        "lambada": "lambada/lambada_openai.yaml", "gsm8k": "gsm8k/gsm8k.yaml"}
# Metrics of Ashlar by those of lm-eval.
METRICS = {"hellaswag": {"acc,none": "acc", "acc_norm,none": "acc_norm"},
           "arc": {"acc,none": "acc", "acc_norm,none": "acc_norm"}, "mmlu": {"acc,none": "acc"},
           "lambada": {"acc,none": "acc", "perplexity,none": "perplexity"},
           "gsm8k": {"exact_match,strict-match": "exact_match_strict", "exact_match,flexible-extract": "exact_match_flexible"}}
ROWS = 12
SHOTS = 2  # examples before a question, where there are any
TOLERANCE = 1e-4  # of perplexities, relative; accuracies must be equal


def rows_of(words):
    rng = random.Random(3)
    some = lambda least, most: " ".join(rng.choice(words) for _ in range(rng.randint(least, most)))
    rows = {name: [] for name in YAML}
    for i in range(ROWS + SHOTS):
        rows["hellaswag"].append({"ind": i, "activity_label": some(1, 3).title(), "ctx_a": some(5, 20) + ".",
                                  "ctx_b": some(1, 4), "ctx": "", "label": str(rng.randrange(4)),
                                  "endings": [some(2, 9) + rng.choice([".", " [title] x", "  y", ""]) for _ in range(4)]})
        labels = rng.choice([["A", "B", "C", "D"], ["1", "2", "3"]])
        rows["arc"].append({"id": str(i), "question": some(4, 15) + "?", "answerKey": rng.choice(labels),
                            "choices": {"text": [some(1, 6) for _ in labels], "label": labels}})
        rows["mmlu"].append({"question": " " + some(4, 15) + "?", "subject": "abstract_algebra", "answer": rng.randrange(4),
                             "choices": [some(1, 5) for _ in range(4)]})
        # The model knows how entries of the dictionary end: some last words and numbers are right.
        rows["lambada"].append({"text": some(6, 25) + (" [1913 Webster]" if i % 2 else "")})
        rows["gsm8k"].append({"question": some(4, 12) + f" {i}?", "answer": f"{some(2, 5)}\n#### {i if i % 2 else 1913}"})
    return rows


def write_tasks(directory, rows):
    """lm-eval's task files, with the rows above in place of the data set, and the last of them as examples."""
    for name, each in rows.items():
        data, examples = directory / f"{name}.jsonl", directory / f"{name}.shots.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in each[:ROWS]))
        examples.write_text("".join(json.dumps(row) + "\n" for row in each[ROWS:]))
        class Loader(yaml.SafeLoader):
            pass
        Loader.add_constructor("!function", lambda loader, node: "!function " + node.value)
        task = yaml.load((TASKS / YAML[name]).read_text(), Loader)
        if name == "hellaswag":
            task.pop("process_docs")
        text = yaml.safe_dump({**task, "task": f"own_{name}", "dataset_path": "json", "dataset_name": None,
                               "dataset_kwargs": {"data_files": {"test": str(data), "dev": str(examples)}},
                               "test_split": "test", "training_split": None, "validation_split": None,
                               "fewshot_split": "dev", "num_fewshot": None, "tag": None,
                               "fewshot_config": {"sampler": "first_n"},
                               **({"description": "The following are multiple choice questions (with answers) about "
                                                  "abstract algebra.\n\n"} if name == "mmlu" else {})})
        if name == "hellaswag":
            text += "process_docs: !function utils.process_docs\n"
            (directory / "utils.py").write_text((TASKS / "hellaswag/utils.py").read_text())
        (directory / f"{name}.yaml").write_text(text)


def lm_eval_results(model, directory, shots=None):
    return lm_eval.simple_evaluate(model=model, tasks=[f"own_{name}" for name in YAML], num_fewshot=shots,
                                   bootstrap_iters=0, task_manager=TaskManager(include_path=str(directory)),
                                   log_samples=True)


def our_results(ashlar, model, directory, *flags):
    return {name: json.loads(ashlar.run(
        "eval", "--model", model, "--tasks", directory / f"{name}.jsonl", "--dtype", "fp32", "--json", "--out",
        directory / f"{name}.rows", "--force", *(f.replace("TASK", str(directory / name)) for f in flags))) for name in YAML}


def compare_metrics(checks, label, ours, theirs):
    for name, metrics in METRICS.items():
        got = theirs["results"][f"own_{name}"]
        words, same = [], True
        for theirs_name, ours_name in metrics.items():
            a, b = ours[name][ours_name], got[theirs_name]
            same &= abs(a - b) <= (TOLERANCE * abs(b) if ours_name == "perplexity" else 1e-12)
            words.append(f"{ours_name} {a:.6g} | {b:.6g}")
        checks.line(f"{label}: {name}, {ROWS} questions", same, ", ".join(words))


def compare_answers(checks, label, directory, theirs):
    """Every log-likelihood and every generated answer."""
    worst, texts, same_texts = 0.0, 0, 0
    for name in YAML:
        ours = [json.loads(line) for line in (directory / f"{name}.rows").read_text().splitlines()[1:]]
        samples = {s["doc_id"]: s for s in theirs["samples"][f"own_{name}"]}
        for i, row in enumerate(ours):
            if name == "gsm8k":
                texts += 1
                same_texts += row.get("text", "") == samples[i]["resps"][0][0]
                continue
            for a, response in zip(row["logprobs"], samples[i]["resps"], strict=True):
                b = float(response[0][0])
                worst = max(worst, abs(a - b) / max(1.0, abs(b)))
    checks.line(f"{label}: log-likelihoods of all choices", worst <= 1e-4, f"worst relative difference {worst:.1e}")
    checks.line(f"{label}: generated answers", same_texts == texts, f"{same_texts}/{texts} texts equal")


def check_client(checks, service, exported, words):
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    client = openai.OpenAI(base_url=service.url + "/v1", api_key="none")
    checks.line("openai: models.list", len(client.models.list().data) == 1, client.models.list().data[0].id)
    prompts = [" ".join(words[i:i + 5]) for i in range(0, 40, 5)]
    wanted = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=16, do_sample=False)[0][ids.shape[1]:]
        wanted.append(out[:-1].tolist() if out[-1] == tokenizer.eos_token_id else out.tolist())
    found = client.completions.create(model="m", prompt=prompts, max_tokens=16, temperature=0)
    same = sum(tokenizer.decode(w).strip() == c.text.strip() for w, c in zip(wanted, found.choices, strict=True))
    checks.line("openai: greedy completions are transformers'", same == len(prompts), f"{same}/{len(prompts)} texts equal")
    streamed = [""] * len(prompts)
    for event in client.completions.create(model="m", prompt=prompts, max_tokens=16, temperature=0, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    checks.line("openai: streams are the same texts", streamed == [c.text for c in found.choices], "")
    ids = tokenizer(prompts[0]).input_ids
    echo = client.completions.create(model="m", prompt=ids, max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    worst = max(abs(rows[t, ids[t + 1]].item() - echo.token_logprobs[t + 1]) for t in range(len(ids) - 1))
    checks.line("openai: log-probabilities of a prompt", worst <= 1e-4, f"worst difference {worst:.1e}")
    chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompts[0]}], max_tokens=8,
                                          temperature=0)
    text = tokenizer.apply_chat_template([{"role": "user", "content": prompts[0]}], tokenize=False,
                                         add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    out = model.generate(ids, max_new_tokens=8, do_sample=False)[0][ids.shape[1]:]
    checks.line("openai: a chat is what transformers answers",
                tokenizer.decode(out, skip_special_tokens=True).strip() == chat.choices[0].message.content.strip(),
                repr(chat.choices[0].message.content))
    deltas = client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompts[0]}], max_tokens=8,
                                            temperature=0, stream=True)
    parts = "".join(e.choices[0].delta.content or "" for e in deltas if e.choices)
    checks.line("openai: a streamed chat is the same", parts == chat.choices[0].message.content, "")


def make_model(ashlar, scratch, entries):
    text, tokenizer = scratch / "corpus.jsonl", scratch / "tok.model"
    text.write_text("".join(json.dumps({"text": entry}) + "\n" for entry in entries[:4000]))
    ashlar.run("tokenizer", "train", "--input", text, "--vocab", 1024, "--out", tokenizer)
    ashlar.run("data", "prepare", "--input", text, "--tokenizer", tokenizer, "--out", scratch / "corpus")
    (scratch / "tiny.toml").write_text(RECIPE["llama"] if isinstance(RECIPE, dict) else RECIPE)
    ashlar.run("train", scratch / "tiny.toml", "model.vocab_size=1024", f"data.train={scratch / 'corpus'}",
               "model.max_position_embeddings=512", f"train.run_dir={scratch / 'run'}", *RECIPE_FLAGS, "train.steps=60")
    ashlar.run("ckpt", "export", scratch / "run/checkpoints", scratch / "hf", "--dtype", "fp32")
    (scratch / "hf/chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    return scratch / "hf"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", required=True)
    ashlar, checks = Ashlar(parser.parse_args().ashlar), Checks()
    torch.set_num_threads(1)  # a tiny model
    _, entries = corpus()
    words = [w for entry in entries[:400] for w in entry.split() if w.isalpha()]
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        exported = make_model(ashlar, scratch, entries)
        tasks = scratch / "tasks"
        tasks.mkdir()
        write_tasks(tasks, rows_of(words))
        peer = HFLM(pretrained=str(exported), device="cpu", dtype="float32", batch_size=1)
        for shots in (SHOTS, 0):
            flags = ("--shots", str(shots), "--shots-from", "TASK.shots.jsonl") if shots else ()
            ours = our_results(ashlar, exported, tasks, *flags)
            theirs = lm_eval_results(peer, tasks, shots)
            label = f"eval | lm-eval's hf, {shots} shots"
            compare_metrics(checks, label, ours, theirs)
            compare_answers(checks, label, tasks, theirs)
        with Service(ashlar, exported, "--context", "512") as service:
            api = LocalCompletionsAPI(model=str(exported), base_url=service.url + "/v1/completions", num_concurrent=8,
                                      max_length=512, add_bos_token=True, tokenizer_backend="huggingface")
            compare_metrics(checks, "eval | serve by local-completions", ours, lm_eval_results(api, tasks))
            check_client(checks, service, exported, words)
        checks.line("serve: stops at SIGTERM", service.code == 0, f"exit code {service.code}")
    print(f"{checks.count} checks, {checks.failed} failed")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
