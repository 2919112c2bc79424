#!/usr/bin/env bash
# Tokens per second of a whole training step, Ashlar against Hugging Face transformers on PyTorch, measured in
# alternation by train_step.py.  Before that: a dataset with the recipe's vocabulary, kept under build/peers.
#
#   scripts/peers/train_step.sh [--model zaya1-nano|zaya1-small|llama-nano|moe-nano|hybrid-nano] [--text FILE]
#                               [--tokenizer sentencepiece|byte] [flags of train_step.py]
#
# FILE is any text or JSONL file; default: the quick start's corpus, or the dictionary that it is made of.  A tokenizer
# of the recipe's vocabulary is trained on it (a minute); `byte` needs no training and suits short texts.
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch and transformers (scripts/peers/python)
set -euo pipefail
cd "$(dirname "$0")/../.."
model=nano text='' tokenizer=sentencepiece flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --model | --text | --tokenizer)
      [ $# -ge 2 ] || { echo "train_step: $1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    *) flags+=("$1") ;;
  esac
  shift
done
model=${model#zaya1-}
case $model in
  nano | small) recipe=recipes/zaya1-$model.toml ;;
  llama-nano | moe-nano | hybrid-nano) recipe=recipes/$model.toml ;;
  *) echo "train_step: --model is $model; expected zaya1-nano, zaya1-small, llama-nano, moe-nano or hybrid-nano" >&2; exit 2 ;;
esac
case $tokenizer in
  sentencepiece | byte) ;;
  *) echo "train_step: --tokenizer is $tokenizer; expected sentencepiece or byte" >&2; exit 2 ;;
esac
vocab=$(sed -nE 's/^vocab_size *= *([0-9]+).*/\1/p' "$recipe")
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2

work=build/peers
mkdir -p "$work"
if [ -z "$text" ]; then
  text=runs/quickstart/gcide.txt
  dictionary=/usr/share/dictd/gcide.dict.dz
  if [ ! -f "$text" ]; then
    text=$work/gcide.txt
    [ -f "$dictionary" ] || { echo "train_step: no $dictionary; run scripts/setup, or give --text FILE" >&2; exit 2; }
    [ -f "$text" ] || { zcat "$dictionary" >"$text.part" && mv "$text.part" "$text"; }
  fi
fi
[ -f "$text" ] || { echo "train_step: --text $text: there is no such file" >&2; exit 2; }

# The name tells texts, vocabularies and tokenizers apart, so that each is prepared once.
data=$work/$(basename "${text%.*}")-$(cksum <"$text" | cut -d' ' -f1)-$tokenizer-$vocab
if [ ! -f "$data.idx" ]; then
  learned=byte
  if [ "$tokenizer" = sentencepiece ]; then
    learned=$data.model
    [ -f "$learned" ] || "$ashlar" tokenizer train --input "$text" --vocab "$vocab" --out "$learned"
  fi
  "$ashlar" data prepare --input "$text" --documents blank-line --tokenizer "$learned" --out "$data"
fi
exec scripts/peers/python scripts/peers/train_step.py --ashlar "$ashlar" --recipe "$recipe" --data "$data" \
  --model "$model" "${flags[@]}"
