#!/usr/bin/env bash
# Exports of Llama and Qwen3 to GGUF, by the converter in the source of the PyPI package llama-cpp-python (llama.cpp's
# convert_hf_to_gguf.py): gguf_files.py compares the tensors and the tokens of both files.  A line for each check; exit code 1
# if one fails, 77 where the source cannot be had.
#
#   scripts/peers/gguf.sh
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything (scripts/peers/python)
#   LLAMA_CPP=DIR     llama.cpp's source (default: downloaded, 75 MB)
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
scripts/peers/python -c '' || exit $?
skip() {
  echo "skipped: $1" >&2
  exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "${LLAMA_CPP:-}" ]; then
  scripts/peers/python -m pip download -q --no-binary :all: --no-deps -d "$scratch" llama-cpp-python ||
    skip "pip cannot download llama-cpp-python"
  tar xzf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch"
  LLAMA_CPP=$(echo "$scratch"/llama_cpp_python-*/vendor/llama.cpp)
fi
[ -f "$LLAMA_CPP/convert_hf_to_gguf.py" ] || skip "there is no converter in $LLAMA_CPP"
# What the converter imports beside PyTorch and transformers.
scripts/peers/python -m pip install -q --target "$scratch/site" sentencepiece protobuf pyyaml tqdm ||
  skip "pip cannot install what the converter imports"
export HF_HUB_OFFLINE=1  # nothing is downloaded
PYTHONPATH=$scratch/site:$LLAMA_CPP/gguf-py:$LLAMA_CPP scripts/peers/python scripts/peers/gguf_files.py --ashlar "$ashlar" \
  --converter "$LLAMA_CPP/convert_hf_to_gguf.py"
