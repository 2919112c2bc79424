#!/usr/bin/env bash
# Reads the model files of Ashlar's steps in many layouts with safetensors and with PyTorch's Hugging Face storage
# reader and consolidation, and compares every bit (checkpoint_compat.py).  A row for each layout, then "N of N equal";
# exit code 1 if one differs, 77 where PyTorch cannot be installed (scripts/peers/python says what it needs).
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch, safetensors and transformers already
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/checkpoint_compat.py --ashlar "$ashlar" "$@"
