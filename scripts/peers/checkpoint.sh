#!/usr/bin/env bash
# Saving and loading of checkpoints: Ashlar's engine against PyTorch's torch.distributed.checkpoint, the same tensors on
# the same disk, measured in alternation by checkpoint.py.
#
#   scripts/peers/checkpoint.sh [--workload NAME,...] [--rounds N] [--gib N] [--ranks N] [--dir DIR] [--step-seconds S]
#                               [--no-sync]
#
# It installs PyTorch into build/peers/venv, a virtual environment that can be thrown away (scripts/peers/python says
# how), and tries to install bytecheckpoint 0.0.2 into another one, build/peers/bytecheckpoint; where that does not
# install or run, it says why.
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch already
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/checkpoint.py --ashlar "$ashlar" "$@"
