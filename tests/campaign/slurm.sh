#!/usr/bin/env bash
# Kills a node of a Slurm cluster while scripts/slurm/train.sbatch trains on it.  The job must be queued again, run on
# other nodes, continue from the newest step, and end with the weights of an undisturbed run.
#
#   slurm.sh ASHLAR [DIR]      the program, and where to work (default: a temporary directory)
#
# Takes about three minutes, most of it waiting for Slurm's own time-outs.  Exits with 77 where the machine refuses
# network namespaces or lacks Slurm.
set -euo pipefail
ashlar=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
work=${2:-$(mktemp -d)}
cluster=scripts/slurm/virtual_cluster.sh
steps=400
export ASHLAR=$ashlar

given=${2:-}
clean_up() {
  [ ! -e "$work/cluster/slurm.conf" ] || "$cluster" stop "$work/cluster"
  [ -n "$given" ] || rm -rf "$work"
}
trap clean_up EXIT
"$cluster" start "$work/cluster" 3
run() { "$cluster" run "$work/cluster" "$@"; }
die() { echo "slurm: $1" >&2; tail -n 20 "$work"/*.log "$work"/cluster/log/slurmctld >&2; exit 1; }

"$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" >/dev/null
submit() {  # RUN_DIR LOG: prints the job's number
  run sbatch --parsable --nodes=2 --cpus-per-task=1 --time=10 --output="$2" scripts/slurm/train.sbatch \
    tests/fixtures/recipes/tiny.toml data.train="$work/text" train.run_dir="$1" train.steps=$steps \
    checkpoint.every=20 train.micro_batch=1 parallel.timeout_s=20
}
rows() { [ ! -e "$1/metrics.jsonl" ] || grep -c '"loss"' "$1/metrics.jsonl" || true; }
wait_for() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  while [ $SECONDS -lt $end ]; do
    ! "$@" || return 0
    sleep 0.2
  done
  return 1
}

submit "$work/straight" "$work/straight.log" >/dev/null
ended() {
  local jobs
  jobs=$(run squeue --noheader) && [ -z "$jobs" ]
}
wait_for 300 ended || die "the undisturbed job did not end"

job=$(submit "$work/disturbed" "$work/job.log")
trained() { [ "$(rows "$work/disturbed")" -ge 50 ] 2>/dev/null; }
wait_for 120 trained || die "the job did not train"
victim=v2  # of v1 and v2; the script of the job runs on v1
"$cluster" kill "$work/cluster" "$victim"
at=$(rows "$work/disturbed")
[ "$at" -lt $steps ] || die "the job had ended before its node died"
wait_for 300 ended || die "job $job did not end after $victim died"

restarts=$(run scontrol show job "$job" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p')
nodes=$(run scontrol show job "$job" | sed -n 's/^ *NodeList=//p')
[ "${restarts:-0}" -ge 1 ] || die "job $job was not queued again"
"$ashlar" ckpt diff "$work/straight/checkpoints" "$work/disturbed/checkpoints" || die "the weights differ"
echo "slurm: $victim died after step $at of $steps; queued again $restarts times; ended on $nodes with the same weights"
