#!/usr/bin/env bash
# Time of linear attention's recurrence, forward and backward: Ashlar's kernel against the PyTorch code of Hugging Face
# transformers, measured in alternation by linear_attention.py.
#
#   scripts/peers/linear_attention.sh [--rounds N] [--tokens N] [--threads N] [--only WORD] [--seconds S]
#
# It installs PyTorch and transformers into build/peers/venv, a virtual environment that can be thrown away
# (scripts/peers/python says how), and nothing else.  The variants that are compiled take a C++ compiler and minutes.
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch and transformers already
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/linear_attention.py --ashlar "$ashlar" "$@"
