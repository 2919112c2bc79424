#!/usr/bin/env bash
# Cuts off one of the three nodes of a run under scripts/slurm/launch.sbatch that has no spare.  The run must continue on
# two nodes, and return to three once the node's link is healed.  Every loss must be that of one rank without a launcher,
# within the bound of layouts (docs/parallel/README.md).
#
#   slurm_elastic.sh ASHLAR [DIR]      the program, and where to work (default: a temporary directory)
#
# Takes two to five minutes.  Exits with 77 where the machine refuses network namespaces or lacks Slurm.
set -euo pipefail
ashlar=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
given=${2:-}
work=${given:-$(mktemp -d)}
cluster=scripts/slurm/virtual_cluster.sh
run=$work/run
mkdir -p "$work"
export ASHLAR=$ashlar WORLD=3 LOGS=$work

single=
clean_up() {
  [ -z "$single" ] || kill -9 "$single" 2>/dev/null || true
  [ ! -e "$work/cluster/slurm.conf" ] || "$cluster" stop "$work/cluster"
  [ -n "$given" ] || rm -rf "$work"
}
trap clean_up EXIT
die() {
  echo "slurm_elastic: $1" >&2
  tail -n 30 "$work"/*.log >&2
  exit 1
}
comes() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.2
  done
}

# The rates of a node of slow processors and fast links: three of them are faster than two.
write_rates() {
  cat <<'END'
[compute]
achievable_fp32 = { value = 0.001, unit = "TFLOP/s", source = "assumed", from = "a test" }
[memory]
triad = { value = 10, unit = "GB/s", source = "assumed", from = "a test" }
END
  local op
  for op in all_reduce all_gather reduce_scatter send_receive; do
    printf '[[collective]]\nengine = "mpi"\nop = "%s"\ndtype = "F32"\nshape = "all"\nranks = 2\ngroups = 1\n' $op
    printf 'source = "assumed"\nfrom = "a test"\ndate = "2026-11-28"\nforeign_share = 0.0\n'
    printf 'points = [[1024, 1, 1, 1], [65536, 2, 2, 2], [262144, 4, 4, 4], [1048576, 9, 9, 9]]\n'
  done
}
# Training reads the profile's table of products; one of few forms will do, though other programs run meanwhile.
rm -f "$work"/machine.*
"$ashlar" bench products tests/fixtures/recipes/tiny.toml --tune --quick --budget 1 --profile "$work/machine.toml" \
  >"$work/bench.log" 2>&1 || [ $? -eq 7 ] || die "no profile can be measured"
write_rates >>"$work/machine.toml"
"$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" --force >"$work/prepare.log" 2>&1
recipe="tests/fixtures/recipes/tiny.toml data.train=$work/text train.steps=100000 train.global_batch=6
  train.micro_batch=1 train.precision=fp64 train.eval_every=0 checkpoint.every=20 health.max_norm_ratio=1e9
  health.max_loss_rise=1e9"

"$cluster" start "$work/cluster" 3
# Slurm takes a node out of its jobs when it has not answered for so long, and then it cannot come back to the job: 300 s
# by default, 10 s in this cluster.
sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=300/' "$work/cluster/slurm.conf"
"$cluster" run "$work/cluster" scontrol reconfigure
job=$("$cluster" run "$work/cluster" sbatch --parsable --nodes=3 --cpus-per-task=1 --time=10 --output="$work/job.log" \
  scripts/slurm/launch.sbatch $recipe train.run_dir="$run" train.machine="$work/machine.toml" launch.elastic=full)

losses() { sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" 2>/dev/null || true; }
reached() { [ "$(losses "$1" | tail -n 1 | cut -d' ' -f1)" -ge "$2" ] 2>/dev/null; }
says() { grep -q "$1" "$run/launch/log" 2>/dev/null; }
last_step() { losses "$run" | tail -n 1 | cut -d' ' -f1; }

comes 240 reached "$run" 30 || die "the job does not train"
comes 180 grep -q '"whole":true' "$run/launch/layouts.json" || die "no layouts of fewer nodes are found"
leader=$(cut -d/ -f1 "$run/launch/epoch-1/address")
[ "$leader" = v2 ] && victim=v3 || victim=v2
"$cluster" cut "$work/cluster" "$victim"
comes 90 says "shrunk to 2 nodes" || die "it does not go on without $victim"
lost_at=$(last_step)
comes 90 reached "$run" $((lost_at + 40)) || die "two nodes do not train"
"$cluster" heal "$work/cluster" "$victim"
comes 180 says "saves and moves: 3 of 3 nodes are there" || die "it does not go back to three nodes"
grown_at=$(last_step)
comes 120 reached "$run" $((grown_at + 40)) || die "three nodes do not train again"
end=$(last_step)
"$cluster" run "$work/cluster" scancel "$job"

"$ashlar" train $recipe train.run_dir="$work/single" >"$work/single.log" 2>&1 &
single=$!
comes 240 reached "$work/single" "$end" || die "the run of one rank does not train"
kill -9 "$single"
worst=$(join <(losses "$work/single" | sort -k1,1 -u) <(losses "$run" | sort -k1,1) |
  awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > worst) worst = d; ++rows } END { print rows ? worst : 1 }')
awk -v worst="$worst" 'BEGIN { exit !(worst <= 1e-4) }' || die "a loss differs by $worst from that of one rank"
echo "slurm_elastic: lost $victim at step $lost_at, two nodes to step $grown_at, three to step $end; losses of one" \
  "rank within $worst"
