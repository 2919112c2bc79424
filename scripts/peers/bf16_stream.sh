#!/usr/bin/env bash
# How far from fp64 a step in bf16 is: Ashlar with a residual stream in bf16 and in fp32, and Hugging Face transformers
# with its weights in bf16 (docs/bench/tsp.md).  A line each; exit code 1 if Ashlar's gradients are farther, 77 where
# transformers cannot be installed (scripts/peers/python says what it needs).
#
#   scripts/peers/bf16_stream.sh
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export HF_HUB_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/bf16_stream.py --ashlar "$ashlar" "$@"
