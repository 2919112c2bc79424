#!/usr/bin/env bash
# Saving and loading of checkpoints: Ashlar's engine against PyTorch's torch.distributed.checkpoint and bytecheckpoint, the
# same tensors on the same disk, measured in alternation by checkpoint.py.
#
#   scripts/peers/checkpoint.sh [--workload NAME,...] [--rounds N] [--gib N] [--ranks N] [--dir DIR] [--step-seconds S]
#                               [--no-sync] [--variants NAME,...]
#
# It installs PyTorch into build/peers/venv, a virtual environment that can be thrown away (scripts/peers/python says
# how), and bytecheckpoint 0.0.2 with the PyTorch 2.5 that it asks for into another one, build/peers/bytecheckpoint, as
# large; where that does not install or run, it says why and leaves it out.
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has PyTorch already
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
exec scripts/peers/python scripts/peers/checkpoint.py --ashlar "$ashlar" "$@"
