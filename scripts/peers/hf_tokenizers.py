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
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([ashlar, "tokenizer", verb, "--tokenizer", path, *flags], input=lines, text=True,
                          capture_output=True)
    if done.returncode:
        sys.exit(f"{verb} ended with {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def differences(ashlar, path, library, texts):
    """(what, text, ashlar's, the library's)"""
    ids = [encoding.ids for encoding in library.encode_batch_fast(texts)]
    rows = [{"text": text} for text in texts]
    mine = [row["ids"] for row in run(ashlar, "encode", path, rows, "--special")]
    yield from (("ids", *three) for three in zip(texts, mine, ids) if three[1] != three[2])
    for skip in (False, True):
        theirs = library.decode_batch(ids, skip_special_tokens=skip)
        flags = ["--skip-special"] if skip else []
        mine = [row["text"] for row in run(ashlar, "decode", path, [{"ids": one} for one in ids], *flags)]
        yield from (("text", *three) for three in zip(texts, mine, theirs) if three[1] != three[2])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forms", default=",".join(forms()))
    flags = parser.parse_args()
    words = [word + " " for page in corpus() for word in page.split()]
    failed = False
    for name in flags.forms.split(","):
        library = forms()[name]()
        with tempfile.TemporaryDirectory() as place:
            path = str(pathlib.Path(place) / "tokenizer.json")
            library.save(path)
            library = Tokenizer.from_file(path)
            random_ = random.Random(f"{flags.seed} {name}")
            found, done = [], 0
            while done < flags.strings:
                count = min(BATCH, flags.strings - done)
                found += differences(flags.ashlar, path, library, strings(random_, count, words))
                done += count
        failed = failed or bool(found)
        print(f"{name}: {done:,} strings, {len(found)} differ", flush=True)
        for what, text, mine, theirs in found[:3]:
            print(f"  {what} of {text!r}: {mine!r}, expected {theirs!r}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
