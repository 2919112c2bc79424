#!/usr/bin/env bash
# Parity of Ashlar and ZayaForCausalLM of Hugging Face transformers on random and on trained weights, both ways: loss,
# logits, routing, greedy text, in fp32.  One line per check; exit code 1 if one fails, 77 where transformers cannot be
# installed (scripts/peers/python says what it needs).
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/hf_parity.py --ashlar "$ashlar" "$@"
