"""Texts through an exported tokenizer: AutoTokenizer against `ashlar data prepare`, and a task of lm-eval against
`ashlar score`.  Used by hf_parity.py.

The texts are 2,000: entries of the corpus of the quick start (of docs/ where it is not installed), hard ones by hand,
and random ones of characters that are hard beside each other.
"""
import gzip
import json
import math
import pathlib
import random
import struct

from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = pathlib.Path("/usr/share/dictd/gcide.dict.dz")
NUM_TEXTS = 2000
HARD = ["", " ", "  ", "\t", "\n", "\n\n\n", "\r\n", " a", "a ", "  two  spaces  ", "\tx\t\ty", " \n ", "a\u00a0b",
        "\u3000x", "\u200b", "\ufeffx", "<s>", "</s>", "<unk>", "<pad>", " <s> ", "a<s>b</s>c", "<0x41>", "<0x", "<<",
        "<|endoftext|>", "[CLS]", "\u2581", "\u2581\u2581x", "a \u2581b", "\x01\x02\x1f\x7f", "na\u00efve", "e\u0301",
        "\u0301", "\ufb01", "\u2460", "\u6f22\u5b57\u304b\u306a", "\ud55c\uae00", "\U0001f9f1",
        "\U0001f469\u200d\U0001f469\u200d\U0001f466", "\U0010ffff", "\ufffd", "-" * 37, "." * 64, " " * 33, "a" * 31,
        "=-=-=-=-=", "0123456789", "x" * 300, "ab" * 40]
LETTERS = " \t\n<>s/unkpad0x4\u2581\u00e9\u6f22\U0001f9f1\u0301aeiou.-_[]{}A"
RECIPE_FLAGS = ["train.steps=5", "train.threads=1", "data.validation_fraction=0"]
TASK = """
task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: bits_per_byte}}
"""


def corpus():
    if CORPUS.exists():
        lines = gzip.open(CORPUS).read()[:4_000_000].decode("utf-8", "replace").split("\n")
        entries, entry = [], ""
        for line in lines:  # an entry begins at the margin
            if line and not line[0].isspace() and entry:
                entries.append(entry)
                entry = ""
            entry = (entry + " " + " ".join(line.split())).strip()
        return "the dictionary", [e for e in entries if len(e) > 60]
    texts = [p.read_text() for p in sorted(ROOT.glob("docs/**/*.md"))]
    return "docs/", [part for text in texts for part in text.split("\n\n") if part]


def texts_of(entries):
    rng = random.Random(1)
    texts = list(HARD)
    for _ in range(400):
        texts.append("".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 40))))
    for _ in range(300):  # cut anywhere, between hard characters
        entry = rng.choice(entries)
        at = rng.randrange(len(entry))
        texts.append(rng.choice(LETTERS) + entry[at:at + rng.randint(1, 80)] + rng.choice(LETTERS))
    for _ in range(200):
        texts.append(" " * rng.randint(0, 3) + rng.choice(entries) + " " * rng.randint(0, 3))
    while len(texts) < NUM_TEXTS:
        texts.append(entries[rng.randrange(len(entries))])
    return texts


def prepared_ids(prefix, eos):
    """The documents of a prepared dataset (docs/formats/dataset.md), without the id that ends them."""
    index, data = pathlib.Path(f"{prefix}.idx").read_bytes(), pathlib.Path(f"{prefix}.bin").read_bytes()
    letter = {8: "H", 4: "i"}[index[17]]
    sequences = struct.unpack_from("<Q", index, 18)[0]
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    ids = struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)
    documents, at = [], 0
    for length in lengths:
        assert ids[at + length - 1] == eos
        documents.append(list(ids[at:at + length - 1]))
        at += length
    return documents


def ids_of_training(ashlar, model, texts, scratch, eos):
    with open(scratch / "texts.jsonl", "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    ashlar.run("data", "prepare", "--input", scratch / "texts.jsonl", "--tokenizer", model, "--out", scratch / "texts")
    documents = iter(prepared_ids(scratch / "texts", eos))
    return [next(documents) if text else [] for text in texts]  # an empty text is no document


def check_lm_eval(checks, name, ashlar, exported, tokenizer, texts, scratch):
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        checks.note("lm-eval is not installed here, so its task was left out")
        return
    with open(scratch / "task.jsonl", "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    tasks = scratch / "tasks"
    tasks.mkdir()
    (tasks / "texts.yaml").write_text(TASK.format(data=scratch / "task.jsonl"))
    model = HFLM(pretrained=str(exported), device="cpu", dtype="float32", batch_size=1)
    theirs = lm_eval.simple_evaluate(model=model, tasks=["texts"], bootstrap_iters=0,
                                     task_manager=TaskManager(include_path=str(tasks)))
    nats = size = 0.0
    for text in texts:
        ids = [tokenizer.bos_token_id] + tokenizer.encode(text)
        nats += ashlar.score(exported, ids)["loss"] * (len(ids) - 1)
        size += len(text.encode())
    ours = nats / size / math.log(2)
    got = theirs["results"]["texts"]["bits_per_byte,none"]
    difference = abs(got - ours) / ours
    checks.line(f"{name}: bits a byte of {len(texts)} texts by lm-eval {lm_eval.__version__}", difference <= 1e-5,
                f"{ours:.7f} | {got:.7f} (rel {difference:.1e})")


def check_texts(checks, ashlar, scratch, recipe, kind):
    """Trains a tokenizer and, for a few steps, a model; exports; encodes and decodes, as training does and as
    AutoTokenizer does; through import and export once more; then lm-eval."""
    source, entries = corpus()
    text, model = scratch / "corpus.jsonl", scratch / "tok.model"
    with open(text, "w") as out:
        out.writelines(json.dumps({"text": entry}) + "\n" for entry in entries[:6000])
    ashlar.run("tokenizer", "train", "--input", text, "--vocab", 2048, "--kind", kind, "--out", model)
    ashlar.run("data", "prepare", "--input", text, "--tokenizer", model, "--out", scratch / "corpus")
    (scratch / "tiny.toml").write_text(recipe)
    ashlar.run("train", scratch / "tiny.toml", "model.vocab_size=2048", f"data.train={scratch / 'corpus'}",
               f"train.run_dir={scratch / 'run'}", *RECIPE_FLAGS)
    exported, root, again = (scratch / part for part in ("hf", "root", "again"))
    ashlar.run("ckpt", "export", scratch / "run/checkpoints", exported, "--dtype", "fp32")
    ashlar.run("ckpt", "import", exported, root)
    ashlar.run("ckpt", "export", root, again, "--dtype", "fp32")
    names = sorted(p.name for p in exported.iterdir())
    same = [n for n in names if (again / n).exists() and (exported / n).read_bytes() == (again / n).read_bytes()]
    checks.line(f"{kind}: export, import, export", names == same, f"{len(same)}/{len(names)} files equal")

    texts = texts_of(entries)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    expected = ids_of_training(ashlar, model, texts, scratch, tokenizer.eos_token_id)
    pairs = list(zip(texts, expected, strict=True))
    given = [tokenizer(t)["input_ids"] for t in texts]
    encoded, tied = sum(map(list.__eq__, given, expected)), 0
    if kind == "unigram":  # sentencepiece sums scores in single precision, which decides between equal sums
        vocab = json.loads((exported / "tokenizer.json").read_text())["model"]["vocab"]
        score = [sum(vocab[i][1] for i in ids) for ids in expected]
        tied = sum(a != b and abs(sum(vocab[i][1] for i in a) - s) <= 1e-6 * abs(s)
                   for a, b, s in zip(given, expected, score, strict=True))
    decoded = sum(tokenizer.decode(ids) == t.replace("\u2581", " ") for t, ids in pairs)  # one sign for both
    checks.line(f"{kind}: {type(tokenizer).__name__} of {len(tokenizer)} ids, texts of {source}",
                encoded + tied == decoded == len(texts) and tied < len(texts) / 100 and len(tokenizer) == 2048,
                f"{encoded}/{len(texts)} encode as in training{f', {tied} to another cut of equal score' * (tied > 0)}, "
                f"{decoded}/{len(texts)} decode to themselves")
    short = [t for t, ids in pairs if 8 < len(ids) < 200][-24:]
    check_lm_eval(checks, kind, ashlar, exported, tokenizer, short, scratch)
