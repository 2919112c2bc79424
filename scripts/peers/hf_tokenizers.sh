#!/usr/bin/env bash
# Compares tokenizers in 15 forms with the tokenizers library 0.23.3 on random strings (hf_tokenizers.py says how).
# Exit code 1 if one differs, 77 where the library cannot be installed.
#
#   scripts/peers/hf_tokenizers.sh [--strings N] [--seed S] [--forms gpt2,llama3,...]
#
#   ASHLAR=FILE   the binary (default build/release/ashlar, built if it is not there)
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q tokenizers==0.23.3 sentencepiece; } >"$work/log" 2>&1; then
  echo "skipped: tokenizers cannot be installed ($(tail -1 "$work/log"))" >&2
  exit 77
fi
"$work/venv/bin/python" scripts/peers/hf_tokenizers.py --ashlar "$ashlar" "$@"
