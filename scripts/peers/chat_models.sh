#!/usr/bin/env bash
# Chat models there and back: a small model of each family gets tokens that were added to its tokenizer, a list of ids
# that end a text, and a chat template; `ckpt import`, three steps of training and `ckpt export` must leave all of it as
# it was, for Hugging Face transformers as for Ashlar: the same ids, the same stops, the same template, the same text.
# A line for each check; exit code 1 if one fails, 77 where transformers cannot be installed (scripts/peers/python says
# what it needs).
#
#   scripts/peers/chat_models.sh
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export HF_HUB_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/chat_models.py --ashlar "$ashlar" "$@"
