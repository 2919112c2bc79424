"""Megabytes of text that one thread encodes in a second of CPU time (user mode): `ashlar data prepare --threads 1`
against encode_batch_fast of the tokenizers library, by form of tokenizer, and against Debian's libsentencepiece.

The libraries' time is that of encoding alone; Ashlar's is that of the whole program, which reads JSON and writes a
dataset, less that for a first hundredth of the texts, which loads the tokenizer.  Programs alternate, and each gets the
median of its rounds.  The ids of libsentencepiece must be those of Ashlar.  `ashlar tokenizer train --format hf` is
compared with the library's trainer, once: the vocabulary and merges must be equal.

Texts of about 3,000 characters are cut from the corpus: by default the dictionary of the quick start.  Tokenizers are
trained on docs/ (tokenizer_forms.py), sentencepiece models on the texts.
"""
import argparse
import array
import gzip
import json
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile

from tokenizer_forms import forms, learned
from tokenizers import Tokenizer

FORMS = ["gpt2", "llama3", "qwen", "o200k", "deepseek", "llama2", "unigram", "wordpiece"]
CORPUS = ["/usr/share/dictd/gcide.dict.dz"]
EOS = 1


def texts_of(paths, size):
    texts, text = [], ""
    for path in map(pathlib.Path, paths):
        data = gzip.open(path).read() if path.suffix in (".gz", ".dz") else path.read_bytes()
        for line in data.decode("utf-8", "replace").replace("\0", " ").split("\n"):
            text += line + "\n"
            if len(text) > 3000:
                texts.append(text)
                size, text = size - len(text.encode()), ""
                if size < 0:
                    return texts
    return texts


def user_seconds(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, done.stdout


class Comparison:
    def __init__(self, flags, work):
        self.flags, self.work = flags, work
        self.texts = texts_of(flags.corpus, flags.megabytes * 1e6)
        self.size = sum(len(text.encode()) for text in self.texts) / 1e6
        self.first = self.texts[:len(self.texts) // 100]
        for name, texts in (("all", self.texts), ("first", self.first)):
            with open(work / f"{name}.jsonl", "w") as out:
                out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)

    def prepare(self, name, tokenizer):
        return user_seconds(self.flags.ashlar, "data", "prepare", "--threads", 1, "--force", "--tokenizer", tokenizer,
                            "--input", self.work / f"{name}.jsonl", "--out", self.work / name)[0]

    def rates(self, tokenizer, library):
        """Of Ashlar and of the library, MB/s."""
        own, theirs = [], []
        for _ in range(self.flags.rounds):
            own.append(self.prepare("all", tokenizer) - self.prepare("first", tokenizer))
            theirs.append(library())
        part = self.size - sum(len(text.encode()) for text in self.first) / 1e6
        return part / statistics.median(own), self.size / statistics.median(theirs)

    def tell(self, name, rates, more=""):
        print(f"{name}: {rates[0]:.1f} MB/s, the library {rates[1]:.2f} MB/s: {rates[0] / rates[1]:.1f} times{more}",
              flush=True)

    def compare_form(self, name):
        path = self.work / "tokenizer.json"
        forms()[name]().save(str(path))
        end = json.loads(path.read_text())["added_tokens"][0]["content"]  # any token that ends documents
        (self.work / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        tokenizer = Tokenizer.from_file(str(path))

        def library():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            tokenizer.encode_batch_fast(self.texts)
            return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        self.tell(name, self.rates(path, library))

    def compare_sentencepiece(self, kind):
        model, ids = self.work / f"{kind}.model", self.work / "ids"
        user_seconds(self.flags.ashlar, "tokenizer", "train", "--input", self.work / "all.jsonl", "--vocab", 4000,
                     "--kind", kind, "--out", model)
        (self.work / "texts").write_text("".join(text + "\0" for text in self.texts))

        def library():
            return float(user_seconds(self.flags.library, model, self.work / "texts", ids)[1])
        rates = self.rates(model, library)
        expected = array.array("i", ids.read_bytes())
        data = (self.work / "all.bin").read_bytes()
        found = struct.unpack(f"<{len(data) // 2}H", data)
        same = len(found) == len(expected) and all(
            mine == (EOS if theirs < 0 else theirs) for mine, theirs in zip(found, expected))
        self.tell(f"sentencepiece {kind}", rates, f", {len(found):,} ids {'equal' if same else 'DIFFER'}")
        return same

    def compare_training(self):
        path = self.work / "learned.json"
        own = user_seconds(self.flags.ashlar, "tokenizer", "train", "--format", "hf", "--vocab", self.flags.vocab,
                           "--input", self.work / "all.jsonl", "--out", path)[0]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        model = json.loads(learned(self.texts, self.flags.vocab).to_str())["model"]
        library = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        mine = json.loads(path.read_text())["model"]
        same = all(mine[member] == model[member] for member in ("vocab", "merges"))
        print(f"learning {self.flags.vocab:,} tokens: {own:.1f} s, the library {library:.1f} s: {library / own:.1f} times,"
              f" {len(model['merges']):,} merges {'equal' if same else 'DIFFER'}", flush=True)
        return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--corpus", nargs="+", default=CORPUS)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--sentencepiece", default="bpe,unigram")
    parser.add_argument("--forms", default=",".join(FORMS))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(flags, pathlib.Path(work))
        print(f"{len(comparison.texts):,} texts, {comparison.size:.1f} MB", flush=True)
        same = [comparison.compare_training()]
        same += [comparison.compare_sentencepiece(kind) for kind in filter(None, flags.sentencepiece.split(","))]
        for form in filter(None, flags.forms.split(",")):
            comparison.compare_form(form)
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
