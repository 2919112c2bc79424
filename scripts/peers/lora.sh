#!/usr/bin/env bash
# Fine-tuning on chats against Hugging Face PEFT and transformers (lora.py): losses with a mask of what is learned,
# gradients and updates of adapters, logits of exported adapters and of the merged model.  A line for each check; exit
# code 1 if one fails, 77 where PEFT cannot be had.
#
#   scripts/peers/lora.sh [--family hf_llama]
#   scripts/peers/lora.sh --speed                  CPU seconds of a step (lora_speed.py)
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything (scripts/peers/python), with PEFT
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
scripts/peers/python -c '' || exit $?
venv=${PEERS_VENV:-build/peers/venv}
if ! "$venv/bin/python" -c 'import peft' 2>/dev/null; then
  [ -z "${PEERS_VENV:-}" ] || { echo "skipped: PEERS_VENV is $venv, which lacks peft" >&2; exit 77; }
  "$venv/bin/pip" install -q peft || { echo "skipped: pip cannot install peft" >&2; exit 77; }
fi
export HF_HUB_OFFLINE=1  # nothing is downloaded
script=lora.py
[ "${1:-}" != --speed ] || { script=lora_speed.py && shift; }
exec scripts/peers/python scripts/peers/$script --ashlar "$ashlar" "$@"
