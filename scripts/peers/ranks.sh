#!/usr/bin/env bash
# Tokens per second of a whole training step on two ranks, Ashlar against PyTorch's DistributedDataParallel and FSDP2
# over gloo, measured in alternation by ranks.py: nano, fp32, AdamW, one thread a rank, random tokens.
#
#   scripts/peers/ranks.sh [--rounds N] [--steps N] [--only VARIANT]
#
# It installs PyTorch and transformers into build/peers/venv, a virtual environment that can be thrown away
# (scripts/peers/python says how), and nothing else.  The variants that are compiled take a C++ compiler and minutes.
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch and transformers already
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v mpirun >/dev/null || { echo "ranks: no mpirun; run scripts/setup" >&2; exit 2; }
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/ranks.py --ashlar "$ashlar" "$@"
