"""Tokenizers in the forms that published models have, trained by the tokenizers library on the pages of docs/."""
import json
import pathlib

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
SPECIAL = ["<|begin|>", "<|end|>"]


def corpus():
    return [page.read_text() for page in sorted(pathlib.Path("docs").rglob("*.md"))]


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(patterns=None, normalizer=None, add_prefix_space=False):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns or []]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not splits)])
    tokenizer.decoder = decoders.ByteLevel()
    trained(tokenizer, trainers.BpeTrainer(vocab_size=2000, special_tokens=SPECIAL, show_progress=False,
                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
    return tokenizer


def learned(texts, vocab_size):
    """The form that `ashlar tokenizer train --format hf` learns."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"),
                                                       pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<pad>", "</s>", "<s>", "<unk>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def byte_fallback():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained(tokenizer, trainers.BpeTrainer(vocab_size=1500, special_tokens=names, show_progress=False,
                                           max_token_length=12, limit_alphabet=120))
    # Only the first three are special in models of this form.
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = whole["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram(normalizer, scheme="always", fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    names = ["<unk>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])
    trained(tokenizer, trainers.UnigramTrainer(vocab_size=1500, special_tokens=names, unk_token="<unk>",
                                               show_progress=False))
    if fallback:
        whole = json.loads(tokenizer.to_str())
        whole["model"]["byte_fallback"] = True
        whole["added_tokens"] = whole["added_tokens"][:2]
        tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def character_map():
    """The characters that sentencepiece replaces under nmt_nfkc: field 2 of field 3 of a model."""
    import io

    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()[0].splitlines()), model_writer=model,
                                             vocab_size=100, hard_vocab_limit=False, minloglevel=2)

    def fields(data):
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                value |= (data[at] & 127) << shift
                shift, at = shift + 7, at + 1
                if data[at - 1] < 128:
                    return value
        at = 0
        while at < len(data):
            key = varint()
            if key & 7 == 2:
                size = varint()
                yield key >> 3, data[at:at + size]
                at += size
            elif key & 7 == 5:
                at += 4
            else:
                varint()
    normalizer = next(value for number, value in fields(model.getvalue()) if number == 3)
    return next(value for number, value in fields(normalizer) if number == 2)


def word_piece(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=1500, show_progress=False,
                                                 special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def steps(normalizer, pre_tokenizer):
    """BPE over characters behind other steps."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.BPEDecoder()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>"], show_progress=False))


def with_added(tokenizer):
    tokenizer.add_tokens([AddedToken("layout", single_word=True, normalized=False),
                          AddedToken("<left>", lstrip=True, normalized=False),
                          AddedToken("<right>", rstrip=True, normalized=True),
                          AddedToken("Ranks", normalized=True), AddedToken("ranks of", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("<both>", lstrip=True, rstrip=True, special=True)])
    return tokenizer


def forms():
    n, p = normalizers, pre_tokenizers
    return {
        "gpt2": lambda: byte_level(),
        "gpt2-space": lambda: byte_level(add_prefix_space=True),
        "llama3": lambda: byte_level([LLAMA3]),
        "qwen": lambda: with_added(byte_level([QWEN], n.NFC())),
        "o200k": lambda: byte_level([O200K]),
        "deepseek": lambda: byte_level(DEEPSEEK),
        "llama2": lambda: with_added(byte_fallback()),
        "unigram": lambda: unigram(n.Sequence([n.NFKC(), n.Replace(Regex(" {2,}"), " ")])),
        "unigram-bytes": lambda: unigram(n.Sequence([n.Nmt(), n.NFKD(), n.StripAccents()]), "first", True),
        "precompiled": lambda: unigram(n.Sequence([n.Precompiled(character_map()), n.Replace(Regex(" {2,}"), " ")])),
        "wordpiece": lambda: with_added(word_piece(True)),
        "wordpiece-cased": lambda: word_piece(False),
        "steps-1": lambda: steps(n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase(), n.Strip()]),
                                 p.Sequence([p.Whitespace(), p.Digits(individual_digits=True)])),
        "steps-2": lambda: steps(n.Lowercase(), p.Sequence([p.WhitespaceSplit(), p.Punctuation("contiguous"),
                                                            p.Digits()])),
        "steps-3": lambda: steps(n.NFKD(), p.Sequence([p.Punctuation("merged_with_next"),
                                                       p.Split(Regex(r"\w+\b|\s"), "merged_with_previous"),
                                                       p.Split(Regex(r"\d+"), "removed", invert=True)])),
    }
