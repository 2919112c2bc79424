#!/usr/bin/env bash
# Faults of nodes, links and launchers in runs under scripts/slurm/launch.sbatch, on a Slurm cluster of network
# namespaces.  A job has two nodes more than its run, and the cluster one node more than a job.  Whatever happens, a run
# goes on by itself and comes to the end of the run that nobody disturbs: the same loss in every step, the same weights,
# all checkpoints that were committed before the fault; at no time two leaders or two writers; and no process, socket or
# page is left.
#
#   slurm_launch.sh [--runs N] [--first N] [--kinds "A B"] [--steps N] [--dir DIR] ASHLAR
#
#   --runs N      runs of each kind (default 1)
#   --first N     number of the first (default 1), which decides after which step its fault comes
#   --kinds       some of the kinds (default: all)
#   --steps N     of a run (default 500); more where it would not last for 10 s after its fault
#   --dir DIR     kept afterwards, with a run's files in KIND-NUMBER and what its launchers said in KIND-NUMBER.logs
#
#   kill_agent    SIGKILL of the launcher of a node with ranks     cut_follower  its link is cut, and healed later
#   kill_leader   SIGKILL of the launcher that leads               cut_leader    the same of the node that leads
#   kill_node     SIGKILL of every process of a node               cut_half      the links of both
#   kill_slurmd   SIGKILL of Slurm's daemon on a node              preempted     SIGTERM: saved, and queued again
#                 (also the launcher of a spare is killed, which then does not say how the run ended)
#   kill_first    SIGKILL of the launcher beside the job's script, which lives and ends the job
#   signalled     SIGTERM of all launchers and ranks by Slurm; the leader's order comes to the ranks 1.5 s later
#   shutdown      SIGTERM, and SIGKILL 3 s later, of every process on the node of the job's script
#   cancelled     scancel of the job: saved, and not queued again; a new job goes on with the run
#   double_fault  SIGKILL of the launcher of a node with a rank, and of the other rank: the restart comes first
#   by_hand       as cut_leader, in a launch without Slurm, whose mpirun enters the other nodes by a script
#
# Prints a row for each kind: runs, those whose fault has its right class, seconds from the fault to its name and from
# there to the next first step (median, maximum), the most steps done again.  Exits with 1 if any run ended otherwise
# than it must, with 77 where the machine refuses network namespaces or lacks Slurm.
set -euo pipefail

runs=1 first=1 steps=500 given=''
kinds="kill_agent kill_leader kill_node kill_slurmd cut_follower cut_leader cut_half preempted by_hand double_fault
kill_first signalled shutdown cancelled"
while [ $# -gt 1 ]; do
  case $1 in
    --runs) runs=$2 ;;
    --first) first=$2 ;;
    --kinds) kinds=$2 ;;
    --steps) steps=$2 ;;
    --dir) given=$(readlink -m "$2") ;;
    *) sed -n '2,/^set -euo/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2 ;;
  esac
  shift 2
done
ashlar=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
work=${given:-$(mktemp -d)}
cluster=scripts/slurm/virtual_cluster.sh
num_nodes=4  # of a job; the cluster has one more
mkdir -p "$work"
export ASHLAR=$ashlar WORLD=2 LOGS=$work
export OMPI_MCA_mpi_yield_when_idle=1  # all nodes have the same cores

clean_up() {
  [ ! -e "$work/cluster/slurm.conf" ] || "$cluster" stop "$work/cluster"
  if [ "${bad:-0}" -gt 0 ]; then echo "slurm_launch: $work holds the runs with a problem" >&2
  elif [ -z "$given" ]; then rm -rf "$work"
  fi
}
trap clean_up EXIT
"$cluster" start "$work/cluster" $((num_nodes + 1))
run() { "$cluster" run "$work/cluster" "$@"; }
comes() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

"$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" --force >"$work/prepare.log" 2>&1
cat >"$work/enter" <<END
#!/bin/sh
node=\$1
shift
exec "$PWD/$cluster" on "$work/cluster" "\$node" sh -c "\$*"
END
chmod +x "$work/enter"
start_job() {  # of $run
  local words=(tests/fixtures/recipes/tiny.toml data.train="$work/text" train.run_dir="$run" train.steps=$steps
    train.micro_batch=1 train.global_batch=16 train.eval_every=100 checkpoint.every=20 checkpoint.keep=1000
    health.max_norm_ratio=1e9 health.max_loss_rise=1e9)
  if [ "$kind" != by_hand ]; then
    job=$(run sbatch --parsable --nodes=$num_nodes --cpus-per-task=1 --time=20 --output="$run.log" \
      scripts/slurm/launch.sbatch "${words[@]}")
    return
  fi
  job=hand
  local i
  for ((i = 1; i <= num_nodes; ++i)); do
    OMPI_MCA_plm_rsh_agent=$work/enter OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
      "$cluster" on "$work/cluster" v$i "$ashlar" launch --join --nodes $WORLD "${words[@]}" \
      >"$work/ashlar-$job-v$i.log" 2>&1 &
  done
}
submit() {
  rm -rf "$run" "$work"/ashlar-*.log
  start_job
}
ended() {
  local jobs
  jobs=$(run squeue --noheader) && [ -z "$jobs" ] && [ -z "$(launchers)" ]
}
launchers() { pgrep -f "^$ashlar launch .*train\.run_dir=$run( |\$)" || true; }
ready() { [ "$(run sinfo --noheader --Node --format=%T | grep -cx idle)" -gt $num_nodes ]; }

# --- what a run shows

rows() { [ ! -e "$run/metrics.jsonl" ] && echo 0 || grep -c '"loss"' "$run/metrics.jsonl" || true; }
trained() { [ "$(rows)" -ge "$1" ]; }
committed() { (cd "$run/checkpoints" 2>/dev/null && ls -d step-*/COMMIT 2>/dev/null | sed 's#/COMMIT##') || true; }
events() { grep "\"event\":\"$1\"" "$run/launch/events.jsonl" 2>/dev/null || true; }
restarted() { [ "$(events first_step | wc -l)" -ge 2 ] || ended; }
text_of() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" | sed -n 1p; }
number_of() { sed 's/"evidence":\[.*\]//' | sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.e+-]*\).*/\1/p" | sed -n 1p; }
leading_node() { cut -d/ -f1 "$(ls -v "$run"/launch/epoch-*/address | tail -n 1)"; }
attempt_nodes() { sed -n 's/.*attempt [0-9]* on //p' "$work/ashlar-$job-$leader.log" | tail -n 1 | tr -d ,; }
follower() {  # a node of the present attempt that does not lead
  local node
  for node in $(attempt_nodes); do
    [ "$node" = "$leader" ] || { echo "$node"; return; }
  done
}
agent() {  # NODE: the process of its launcher, not of the leader, which is a child of one
  local pid
  for pid in $(launchers); do
    [ "$(ip netns identify "$pid")" = "$1" ] && ! grep -qz '^ashlar' "/proc/$(ps -o ppid= "$pid" | tr -d ' ')/comm" &&
      echo "$pid" && return
  done
}
all_gone() { ! pgrep -f "train\.run_dir=$run( |\$)" >/dev/null; }  # the job's script looks every 5 s
losses() {
  sed -n '/"event"/!s/.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" |
    awk '{ loss[$1] = $2 } END { for (step in loss) print step, loss[step] }' | sort -n
}

# --- the faults; each sets `class`, the name that it must get ("": none has to come)

cut_off() {  # NODES: until the run has gone on without them
  local node
  class='node lost'
  for node in "$@"; do "$cluster" cut "$work/cluster" "$node"; done
  comes 120 restarted || problem "no attempt followed"
  for node in "$@"; do "$cluster" heal "$work/cluster" "$node"; done
}
kill_agent() { class='node lost'; kill -KILL "$(agent "$victim")"; }
kill_leader() { class='node lost'; kill -KILL "$(agent "$leader")"; }
kill_node() { class='node lost|killed'; "$cluster" kill "$work/cluster" "$victim"; }
kill_slurmd() { class='|node lost'; kill -KILL "$(cat "$work/cluster/state/slurmd-$victim.pid")"; }
kill_first() { class='|node lost'; kill -KILL "$(agent v1)"; }
cut_follower() { cut_off "$victim"; }
cut_leader() { cut_off "$leader"; }
by_hand() { cut_leader; }
cut_half() { cut_off "$leader" "$victim"; }
double_fault() {
  class='killed|node lost'
  local pid
  kill -KILL "$(agent "$victim")"
  for pid in $(pgrep -f "^$ashlar train .*train\.run_dir=$run( |\$)"); do
    [ "$(ip netns identify "$pid")" = "$victim" ] || kill -KILL "$pid"
  done
}
preempted() {
  local node
  for node in v2 v3 v4; do  # the script runs on v1
    [[ " $leader $(attempt_nodes) " == *" $node "* ]] || break
  done
  kill -KILL "$(agent "$node")"
  run scancel --batch --signal=TERM "$job"
}
# As Slurm's own preemption signals a job.  The other rank waits for the one that is suspended.
signalled() {
  class='|preempted'
  local rank leading
  rank=$(pgrep -f "^$ashlar train .*train\.run_dir=$run( |\$)" | sed -n 1p)
  leading=$(pgrep -P "$(agent "$leader")" -f "^$ashlar launch ")
  kill -STOP $leading "$rank"
  run scancel --signal=TERM "$job"
  sleep 1.5
  kill -CONT $leading
  sleep 0.7
  kill -CONT "$rank"
}
queued_again() { run scontrol show job "$job" | grep -q 'Restarts=[1-9]'; }
shutdown() {
  class='|preempted|node lost|killed'
  kill -TERM $(ip netns pids v1)
  sleep 3
  "$cluster" kill "$work/cluster" v1
  comes 120 queued_again || problem "job $job was not queued again"
  "$cluster" revive "$work/cluster" v1
}
cancelled() {
  class='|preempted'
  run scancel "$job"
  comes 60 ended || problem "job $job does not end"
  run scontrol show job "$job" | tr '\n' ' ' | grep -q 'JobState=CANCELLED .*Restarts=0' ||
    problem "job $job is not CANCELLED"
  [ "$(committed | tail -n 1 | sed 's/step-0*//')" -eq "$(rows)" ] || problem "the last step was not saved"
  start_job
}

# --- a run with a fault

problem() { echo "slurm_launch: $kind, run $seed: $*" >&2; bad=$((bad + 1)); }

check_end() {
  local step restarts wanted=0 node
  "$ashlar" status "$run" >"$run.status" || problem "the run is not done: $(head -n 1 "$run.status")"
  [ "$kind" = by_hand ] || restarts=$(run scontrol show job "$job" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p')
  [[ $kind != @(preempted|signalled|shutdown) ]] || wanted=1
  # If Slurm hears of the end of a script that it killed with a lost node, it ends the job as by SIGTERM.
  ! grep -q "_job_complete: JobId=$job WTERMSIG 9" "$work/cluster/log/slurmctld" || wanted=1
  [ "${restarts:-0}" -eq $wanted ] || problem "job $job was queued again $restarts times"
  case $kind in
    kill_node | kill_slurmd | cut_* | by_hand) ;;  # the node of the job's script may be lost
    *) run scontrol show job "$job" | tr '\n' ' ' | grep -q 'JobState=COMPLETED .*ExitCode=0:0' ||
      problem "job $job is not COMPLETED with 0" ;;
  esac
  cmp -s <(losses "$run") "$work/losses" || problem "the losses differ"
  for step in $promised; do [ -e "$run/checkpoints/$step/COMMIT" ] || problem "$step is lost"; done
  "$ashlar" ckpt diff "$work/calm/checkpoints" "$run/checkpoints" >"$run.diff" 2>&1 || problem "the weights differ"
  sed -n 's/.*"epoch":\([0-9]*\),.*/\1/p' "$run/launch/events.jsonl" | sort -nc || problem "two leaders at a time"
  sed -n '/"event"/!s/.*"step":\([0-9]*\),.*/\1/p' "$run/metrics.jsonl" | awk -v most="$(events start | wc -l)" '
    $1 <= last { ++back } { last = $1 } END { exit back >= most }' || problem "two attempts wrote at a time"
  comes 10 all_gone || problem "processes are left"
  for node in "$work"/cluster/nodes/*; do
    ! nsenter --net="/run/netns/${node##*/}" grep -q @ashlar /proc/net/unix || problem "a socket is left on ${node##*/}"
  done
  [ ! -e "$(cat "$run"/pulse/* 2>/dev/null | sed -n 1p)" ] || problem "pages are left"
}

look_at_events() {
  local fault name named lasted limit
  fault=$(events fault | sed -n 1p)
  name=$(text_of class <<<"$fault")
  if [[ $name =~ ^($class)$ ]]; then right=$((right + 1)); else problem "named '$name', not '$class'"; fi
  [ -n "$fault" ] || return 0
  named=$(awk -v t="$(number_of t <<<"$fault")" -v hurt="$hurt" 'BEGIN { printf "%.2f", t - hurt }')
  echo "$named" >>"$work/detected"
  lasted=$(events first_step | number_of restart_s)
  [ -z "$lasted" ] || echo "$lasted" >>"$work/restarted"
  case $kind in
    kill_slurmd) limit=60 ;;  # Slurm's own
    kill_leader | kill_first | cut_leader | cut_half | by_hand | shutdown | cancelled) limit=20 ;;
    *) limit=6 ;;
  esac
  awk "BEGIN { exit $named > $limit }" || problem "named after $named s"
  awk "BEGIN { exit ${lasted:-0} > 15 }" || problem "the next first step came $lasted s after that"
  events action | number_of steps_lost >>"$work/lost"
}

one_run() {
  local moment=$((steps / 6 + seed * 37 % (steps / 4))) failed=$bad
  run=$work/$kind-$seed class=''
  submit
  comes 120 trained $moment || problem "job $job does not train"
  leader=$(leading_node)
  victim=$(follower)
  promised=$(committed)
  hurt=$(date +%s.%N)
  "$kind" || problem "the fault could not be made"
  if ! comes 300 ended; then
    problem "job $job does not end"
    ps -eo pid,ppid,stat,wchan:32,args >"$run.ps"
    [ "$kind" = by_hand ] || run scancel "$job"
    launchers | xargs -r kill -KILL || true
    comes 60 ended || true
  fi
  check_end
  look_at_events
  revive
  mkdir -p "$run.logs"
  mv "$work"/ashlar-*.log "$run.logs"
  [ "$bad" -ne "$failed" ] || [ -n "$given" ] || rm -rf "$run" "$run".*
}

# Makes the cluster whole again.
revive() {
  local node
  for node in "$work"/cluster/nodes/*; do
    node=${node##*/}
    "$cluster" heal "$work/cluster" "$node"
    pgrep -f "^slurmd .*$work/cluster/.*-N $node\$" >/dev/null || "$cluster" revive "$work/cluster" "$node"
  done
  comes 60 ready || problem "the cluster did not become whole again"
}

share() {  # PERCENT FILE: that percentile of its numbers, or "-"
  sort -n "$2" | awk -v p="$1" '
    { v[NR] = $1 }
    END { if (NR) printf "%.2f", v[int((NR - 1) * p / 100 + 0.5) + 1]; else printf "-" }'
}

kind=calm seed=0 bad=0 run=$work/calm
undisturbed() {
  submit
  comes 300 ended || problem "the undisturbed job does not end"
  "$ashlar" status "$run" >"$run.status" || { tail -n 40 "$work"/*.log >&2; exit 1; }
}
undisturbed
# Faults come in the first 5/12 of a run.
least=$(sed -n 's/^step .*: \([0-9.]*\) s a step.*/\1/p' "$run.status" | awk '{ printf "%d", 10 / (7 / 12) / $1 }')
if [ "$least" -gt "$steps" ]; then
  steps=$least
  undisturbed
fi
losses "$run" >"$work/losses"
printf '%-13s %5s %6s %15s %17s %10s\n' kind runs right 'detect p50 max' 'restart p50 max' 'steps lost'
for kind in $kinds; do
  : >"$work/detected"; : >"$work/restarted"; : >"$work/lost"
  right=0
  for seed in $(seq "$first" $((first + runs - 1))); do one_run; done
  printf '%-13s %5d %6d %7s %7s %8s %8s %10s\n' "$kind" "$runs" "$right" "$(share 50 "$work/detected")" \
    "$(share 100 "$work/detected")" "$(share 50 "$work/restarted")" "$(share 100 "$work/restarted")" \
    "$(sort -n "$work/lost" | tail -n 1 | grep . || echo -)"
done
exit $((bad > 0))
