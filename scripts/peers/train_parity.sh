#!/usr/bin/env bash
# Parity of training: a model of each family (ZAYA1, Llama, Qwen3, Mixtral, Qwen3-MoE) starts from one set of weights in
# Ashlar and in Hugging Face transformers on PyTorch, and both train 30 steps on the same rows, with AdamW and with Muon
# (docs/bench/train-parity.md).  A table and the largest differences of each; exit code 1 if one is too large, 77 where
# transformers cannot be installed (scripts/peers/python says what it needs).
#
#   scripts/peers/train_parity.sh [flags of train_parity.py; --help lists them]
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export HF_HUB_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/train_parity.py --ashlar "$ashlar" "$@"
