#!/usr/bin/env bash
# A run under scripts/slurm/launch.sbatch loses nodes, and goes on by itself on those that are left, in the same job:
# first the link of a node that only has a rank is cut, then that of the node that leads and runs the job's script.
# The weights at the end are those of a run that nobody disturbed.
#
#   slurm_launch.sh ASHLAR [DIR]      the program, and where to work (default: a temporary directory)
#
# Takes about two minutes.  Exits with 77 where the machine refuses network namespaces or lacks Slurm.
set -euo pipefail
ashlar=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
work=${2:-$(mktemp -d)}
cluster=scripts/slurm/virtual_cluster.sh
steps=600
export ASHLAR=$ashlar WORLD=2 LOGS=$work

given=${2:-}
clean_up() {
  [ ! -e "$work/cluster/slurm.conf" ] || "$cluster" stop "$work/cluster"
  [ -n "$given" ] || rm -rf "$work"
}
trap clean_up EXIT
"$cluster" start "$work/cluster" 4
run() { "$cluster" run "$work/cluster" "$@"; }
die() {
  echo "slurm_launch: $1" >&2
  tail -n 40 "$work"/*.log "$work"/cluster/log/slurmctld >&2
  exit 1
}
wait_for() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  while [ $SECONDS -lt $end ]; do
    ! "$@" || return 0
    sleep 0.2
  done
  return 1
}

"$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" >/dev/null
submit() {  # RUN_DIR LOG
  run sbatch --parsable --nodes=4 --cpus-per-task=1 --time=10 --output="$2" scripts/slurm/launch.sbatch \
    tests/fixtures/recipes/tiny.toml data.train="$work/text" train.run_dir="$1" train.steps=$steps \
    checkpoint.every=20 train.micro_batch=1 health.max_norm_ratio=1e9 health.max_loss_rise=1e9
}
rows() { [ ! -e "$1/metrics.jsonl" ] || grep -c '"loss"' "$1/metrics.jsonl" || true; }
ended() {
  local jobs
  jobs=$(run squeue --noheader) && [ -z "$jobs" ]
}
events() { grep -c "\"event\":\"$1\"" "$work/disturbed/launch/events.jsonl" 2>/dev/null || true; }

submit "$work/straight" "$work/straight.log" >/dev/null
wait_for 300 ended || die "the undisturbed job did not end"
"$ashlar" status "$work/straight" >/dev/null || die "the undisturbed run is not done"

job=$(submit "$work/disturbed" "$work/job.log")
trained() { [ "$(rows "$work/disturbed")" -ge "$1" ] 2>/dev/null; }
stepped() { [ "$(events first_step)" -ge "$1" ]; }
led_by() { cut -d/ -f1 "$work/disturbed/launch/epoch-$1/address" 2>/dev/null; }
wait_for 120 trained 50 || die "the job did not train"

# A node of the attempt that does not lead.
leader=$(led_by 1)
nodes=$(sed -n 's/.*attempt 1 on \(.*\)$/\1/p' "$work/ashlar-$job-$leader.log" | head -n 1 | tr -d ,)
for node in $nodes; do [ "$node" = "$leader" ] || victim=$node; done
"$cluster" cut "$work/cluster" "$victim"
wait_for 60 stepped 2 || die "no attempt followed the loss of $victim"
grep -q '"class":"node lost"' "$work/disturbed/launch/events.jsonl" || die "the loss of $victim has another name"

"$cluster" cut "$work/cluster" "$leader"
wait_for 90 stepped 3 || die "no leader followed $leader"
second=$(led_by 2)
wait_for 180 ended || die "job $job did not end after $victim and $leader were lost"

restarts=$(run scontrol show job "$job" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p')
[ "${restarts:-0}" -eq 0 ] || die "job $job was queued again"
"$ashlar" ckpt diff "$work/straight/checkpoints" "$work/disturbed/checkpoints" || die "the weights differ"
echo "slurm_launch: lost $victim and then $leader, which led; $second led to the end, with the same weights"
