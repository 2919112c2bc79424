#!/usr/bin/env bash
# `ashlar eval --tasks` and `ashlar serve` against lm-eval, transformers and OpenAI's client, on a small
# model that Ashlar trains and exports: the same answers and the same metrics of five tasks, by lm-eval's own model and by
# its local-completions; greedy texts, log-probabilities and streams by the client.  One line per check; exit code 1 if one
# fails, 77 where lm-eval cannot be installed (scripts/peers/python says what it needs; and the package openai, and what
# lm-eval needs for APIs: aiohttp and tenacity).
#
#   ASHLAR=FILE       the binary (default build/release/ashlar, built if it is not there)
#   PEERS_VENV=DIR    a virtual environment that has everything
set -euo pipefail
cd "$(dirname "$0")/../.."
ashlar=${ASHLAR:-build/release/ashlar}
[ -x "$ashlar" ] || scripts/build release >&2
export TQDM_DISABLE=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1  # nothing is downloaded
exec scripts/peers/python scripts/peers/lm_eval_tasks.py --ashlar "$ashlar" "$@"
