"""Compares `ashlar tokenizer encode` and `decode` with the tokenizers library on random strings over all of Unicode.

    scripts/peers/hf_tokenizers.sh [--strings N] [--seed S] [--forms gpt2,llama3,...]

One line a form: how many strings, and the first three that differ.  Exit code 1 if any does.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizer_forms import corpus, forms
from tokenizers import Tokenizer

BATCH = 20_000
NAMES = ["<|begin|>", "<|end|>", "<s>", "</s>", "<unk>", "[CLS]", "[MASK]", "<left>", "<right>", "<both>", "layout",
         "Ranks", "ranks of", "<0x41>", "▁"]
PIECES = ["'s", "'LL", "'ve", "\u2019s", "\u017f", "n't", " do not", "\r\n", "\n\n", "\t", "  ", "   ", " ", "\u00a0", "\u3000",
          "\u180e", "\u0085", "\u200b", "\u200d", "\ufeff", "\ufffd", "\x00", "\x1f", "12", "3.14", "\u0663", "\u2167", "\u00b2", "\u00bd",
          "e\u0301", "\u0301", "\u1100\u1161\u11a8", "\uac00", "\ufb01", "\u212b", "\u0130", "\u1e9e", "\u0345", "\U0001f468\u200d\U0001f469",
          "\u6f22\u5b57", "\u304b\u3099", "\u30ab", "\u0e33", "\u0958", "\U00016d40", "\U000323b0", "\u0897", "\U00010d50", "\ua7dc",
          "\U00011f02", "\U0001e030", "\U0001171e", "\u111c9", "\u1734", "."]
PLANES = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x33480),
          (0xE0000, 0x110000)]


def strings(random_, count, words):
    def piece():
        kind = random_.random()
        if kind < 0.35:
            return random_.choice(words)
        if kind < 0.55:
            return random_.choice(PIECES)
        if kind < 0.62:
            return random_.choice(NAMES)
        if kind < 0.8:
            return chr(random_.randrange(*random_.choice(PLANES)))
        return random_.choice(" -.,'\"?!()<>_/0123456789aAzZ\n")

    return ["".join(piece() for _ in range(random_.randrange(1, 16))) for _ in range(count)]


def run(ashlar, verb, path, rows, *flags):
    """The lines that it prints for the lines `rows`."""
    done = subprocess.run([ashlar, "tokenizer", verb, "--tokenizer", path, *flags], input="\n".join(rows) + "\n",
                          text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{verb} ended with {done.returncode}: {done.stderr}")
    lines = done.stdout.split("\n")[:-1]
    if len(lines) != len(rows):
        sys.exit(f"{verb} printed {len(lines)} lines for {len(rows)}")
    return lines


class Form:
    def __init__(self, name, place, seed):
        self.name, self.path = name, str(pathlib.Path(place) / f"{name}.json")
        forms()[name]().save(self.path)
        self.library = Tokenizer.from_file(self.path)
        self.random = random.Random(f"{seed} {name}")
        self.done, self.found = 0, []

    def compare(self, ashlar, count, words):
        texts = strings(self.random, count, words)
        ids = [encoding.ids for encoding in self.library.encode_batch_fast(texts)]
        rows = [f'{{"ids":[{",".join(map(str, one))}]}}' for one in ids]
        mine = run(ashlar, "encode", self.path, [json.dumps({"text": text}) for text in texts], "--special")
        self.found += (("ids", *three) for three in zip(texts, mine, rows) if three[1] != three[2])
        for skip in (False, True):
            theirs = self.library.decode_batch(ids, skip_special_tokens=skip)
            lines = run(ashlar, "decode", self.path, rows, *["--skip-special"] * skip)
            mine = (json.loads(line)["text"] for line in lines)
            self.found += (("text", *three) for three in zip(texts, mine, theirs) if three[1] != three[2])
        self.done += count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forms", default=",".join(forms()))
    flags = parser.parse_args()
    words = [word + " " for page in corpus() for word in page.split()]
    with tempfile.TemporaryDirectory() as place:
        all_forms = [Form(name, place, flags.seed) for name in flags.forms.split(",")]
        for done in range(0, flags.strings, BATCH):  # all forms advance alike
            for form in all_forms:
                form.compare(flags.ashlar, min(BATCH, flags.strings - done), words)
            print(f"{all_forms[0].done:,} strings a form:", ", ".join(f"{form.name} {len(form.found)}" for form in all_forms),
                  "differ", file=sys.stderr, flush=True)
    for form in all_forms:
        print(f"{form.name}: {form.done:,} strings, {len(form.found)} differ")
        for what, text, mine, expected in form.found[:3]:
            print(f"  {what} of {text!r}: {mine!r}, expected {expected!r}")
    sys.exit(any(form.found for form in all_forms))


if __name__ == "__main__":
    main()
