#!/usr/bin/env bash
# Tokens per second of `ashlar serve` and `ashlar generate` against transformers and llama.cpp (serve_speed.py), for one
# prompt and for 16.  Exit code 77 where PyTorch and transformers cannot be had.  llama.cpp takes part where the packages
# llama-cpp-python and gguf are installed; pip builds the former, which takes minutes.
#
#   scripts/peers/serve_speed.sh [--rounds N]
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything (scripts/peers/python)
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export HF_HUB_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/serve_speed.py --ashlar "$ashlar" "$@"
