#!/usr/bin/env bash
# Parity of Ashlar and Hugging Face transformers: of ZAYA1 on random and on trained weights, both ways, of Mixtral and
# Qwen3-MoE on trained ones: loss, logits, routing, greedy text, in fp32; of exported tokenizers on 2,000 texts, and a
# task of lm-eval.  One line per check; exit code 1 if one fails, 77 where transformers cannot be installed
# (scripts/peers/python says what it needs).
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export TQDM_DISABLE=1 HF_HUB_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/hf_parity.py --ashlar "$ashlar" "$@"
