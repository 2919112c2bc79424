#!/usr/bin/env bash
# Megatron's reader on datasets that Ashlar prepared with a mask beside them: documents, lengths and ids.  A line for
# each dataset; exit code 1 if one differs, 77 where megatron-core cannot be had.
#
#   scripts/peers/megatron_reader.sh [--chats N]
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything (scripts/peers/python)
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
scripts/peers/python -c '' || exit $?
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Its dependencies are those of training; the reader needs only PyTorch and numpy.
scripts/peers/python -m pip install -q --no-deps --target "$scratch" megatron-core ||
  { echo "skipped: pip cannot install megatron-core" >&2; exit 77; }
export HF_HUB_OFFLINE=1  # nothing is downloaded
PYTHONPATH=$scratch PYTHONWARNINGS=ignore scripts/peers/python scripts/peers/megatron_reader.py --ashlar "$ashlar" "$@"
