#!/usr/bin/env bash
# Compares the speed of `ashlar data prepare` with the tokenizers library 0.23.3 and Debian's libsentencepiece, and the
# ids with the latter's; learns a tokenizer with Ashlar and the former (text_speed.py says how).  Exit code 1 if ids or
# tokenizers differ, 77 where a library cannot be had.
# Installs tokenizers from PyPI and nothing else.
#
#   scripts/peers/text_speed.sh [--rounds N] [--megabytes N] [--vocab N] [--corpus FILE...]
#
#   ASHLAR=FILE   the binary (default build/release/ashlar, built if it is not there)
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q tokenizers==0.23.3; } >"$work/log" 2>&1; then
  echo "skipped: tokenizers cannot be installed ($(tail -1 "$work/log"))" >&2
  exit 77
fi
program=$work/sentencepiece_ids
if ! g++ -O2 -std=c++20 scripts/peers/sentencepiece_ids.cpp -lsentencepiece -o "$program" 2>"$work/log"; then
  echo "skipped: libsentencepiece-dev is not installed ($(head -1 "$work/log"))" >&2
  exit 77
fi
RAYON_NUM_THREADS=1 "$work/venv/bin/python" scripts/peers/text_speed.py --ashlar "$ashlar" \
  --library "$program" "$@"
