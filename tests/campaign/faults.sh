#!/usr/bin/env bash
# Causes faults of 24 kinds, at moments that a seed chooses, in runs under `ashlar launch` on this machine.  Every run
# must end as an undisturbed run does: the same loss in every step, the same bytes in every checkpoint, no checkpoint
# lost that was committed before the fault, and no process, socket or page left behind.  Exceptions:
#
#   numeric                       a learning rate that is far too high has to end the run with exit code 23
#   flipped_bit, other_operation  have to end it with 29 and 30; a second launch then comes to the undisturbed end
#   nan_gradient, poisoned_sample the end is that of a run that passes the step (skips.jsonl)
#
#   faults.sh [--runs N] [--kinds "A B"] [--dir DIR] [--minutes M] ASHLAR PLANTED HOLD SLOW_DISK
#
#   --runs N      runs of each kind (default 25)
#   --kinds       some of the kinds (default: all)
#   --dir DIR     keeps results in DIR/results, a line for each run, and runs only what is not there yet
#   --minutes M   starts no run after M minutes; the same command continues later
#   PLANTED       the program of planted.cpp; HOLD: that of hold.cpp; SLOW_DISK: the library of slow_disk.cpp
#
# Prints a row for each kind, over all results: the number of runs (0: this machine does not allow a mount), of those that
# ended as they must, and of those whose fault was given the right class and rank; the seconds from the fault to its name
# and from there to the next first step (median, 99th percentile); the most steps that were done again.  Exits with 1 if
# any run ended in another way or its fault was named wrongly; the files of such runs stay in DIR.
#
# Nodes and links are left to slurm_launch.sh, and a clock that jumps to tests/launch/advice_test.cpp.
set -euo pipefail

runs=25 work='' given='' minutes=0
kinds="kill_rank kill_process kill_starter kill_launcher kill_all segv_rank abort_rank stop_rank short_stop hang
  slow_rank double_fault fault_in_recovery disk_full broken_sync slow_files damaged_step lost_pages preempted numeric
  nan_gradient poisoned_sample flipped_bit other_operation"
while [ $# -gt 4 ]; do
  case $1 in
    --runs) runs=$2 ;;
    --kinds) kinds=$2 ;;
    --dir) given=$2 ;;
    --minutes) minutes=$2 ;;
    *) sed -n '2,/^set -euo/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2 ;;
  esac
  shift 2
done
given=${given:+$(readlink -m "$given")}
ashlar=$(readlink -f "$1") planted=$(readlink -f "$2") hold=$(readlink -f "$3") slow_disk=$(readlink -f "$4")
cd "$(dirname "$0")/../.."
work=${given:-$(mktemp -d)}
mkdir -p "$work"
clean_up() {
  local left
  left=$(pgrep -f "train\.run_dir=$work/" || true)
  [ -z "$left" ] || kill -KILL $left || true
  mountpoint -q "$work/small" && umount "$work/small"
  [ -n "$given" ] || rm -rf "$work"
}
trap clean_up EXIT

programs=$(cksum "$ashlar" "$planted" | cut -d' ' -f1,2)
[ ! -e "$work/programs" ] || [ "$(cat "$work/programs")" = "$programs" ] ||
  { echo "faults: $work has results of other programs" >&2; exit 2; }
echo "$programs" >"$work/programs"
[ -e "$work/text.json" ] || "$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" \
  --force >"$work/prepare.log" 2>&1
touch "$work/results"
steps=100

# launch RUN: starts the run, or goes on with it, in the background; sets `launcher`.
launch() {
  env "${variables[@]}" "$program" launch tests/fixtures/recipes/tiny.toml --ranks-per-node 2 --starter "$starter" \
    data.train="$work/text" train.steps=$steps checkpoint.every=20 checkpoint.keep=1000 train.micro_batch=1 \
    train.precision=fp32 train.eval_every=50 health.max_norm_ratio=1e9 health.max_loss_rise=1e9 \
    launch.backoff_s=0 "${more[@]}" train.run_dir="$1" >>"$1.log" 2>&1 &
  launcher=$!
}

# --- what a run shows

rows() { [ ! -e "$run/metrics.jsonl" ] && echo 0 || grep -c '"loss"' "$run/metrics.jsonl" || true; }
committed() { (cd "$run/checkpoints" 2>/dev/null && ls -d step-*/COMMIT 2>/dev/null | sed 's#/COMMIT##') || true; }
events() { grep "\"event\":\"$1\"" "$run/launch/events.jsonl" 2>/dev/null || true; }
# The first member of that name; those of the list of evidence are others.
text_of() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" | sed -n 1p; }
number_of() { sed 's/"evidence":\[.*\]//' | sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.e+-]*\).*/\1/p" | sed -n 1p; }
now() { date +%s.%N; }
comes() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.02
  done
}
ranks() { pgrep -f "^$program train .*train\.run_dir=$run( |\$)" || true; }
rank_process() {  # RANK: its process; with threads that of all
  local pid
  for pid in $(ranks); do
    [ "$starter" = mpirun ] || { echo "$pid"; return; }
    ! grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$pid/environ" 2>/dev/null || { echo "$pid"; return; }
  done
}
faults_come() { [ "$(events fault | wc -l)" -ge "$1" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
ended() {  # waits for the launcher; its exit code
  code=0
  { wait "$launcher" || code=$?; } 2>/dev/null
}

# The losses in the order of steps, without those of one step; a step that was done again counts once.
losses() {  # RUN STEP
  sed -n '/"event"/!s/.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" |
    awk '{ loss[$1] = $2 } END { for (step in loss) print step, loss[step] }' | sort -n | without "$2"
}
without() { awk -v step="$1" '$1 != step'; }
# The tensors of a step, without the headers of their files, which name the save.
tensors() {
  local file
  for file in "$1"/{model,optim,loader}/*.safetensors; do
    tail -c +$((9 + $(od -An -t u8 -N 8 "$file"))) "$file" | cksum
  done
}

# --- the faults; each sets `class` and, if it is known, `rank` of the name that it must get ("": none)

signal_rank() { kill "-$1" "$(rank_process "$victim")"; }
kill_rank() { class=killed rank=$victim; signal_rank KILL; }
kill_process() { class=killed rank=0; signal_rank KILL; }
kill_starter() { class=killed; kill -KILL "$(pgrep -P "$launcher" mpirun)"; }
kill_launcher() { kill -KILL "$launcher"; ended; launch "$run"; }
kill_all() {
  local all
  all="$launcher $(pgrep -f "train\.run_dir=$run( |\$)" | tr '\n' ' ')"
  kill -KILL $all || true
  ended
  launch "$run"
}
segv_rank() { class=crash rank=$victim; signal_rank SEGV; }
abort_rank() { class=crash rank=$victim; signal_rank ABRT; }
stop_rank() {
  class=hang rank=$victim
  local pid
  pid=$(rank_process "$victim")
  kill -STOP "$pid"
  comes 60 faults_come 1 || true
  kill -CONT "$pid" 2>/dev/null || true  # it is dead by then, or must not do any harm
}
short_stop() { signal_rank STOP; sleep 1; signal_rank CONT; }
hang() {
  class='hang|fabric'
  "$hold" "$(rank_process "$victim")" 60 &
}
slow_rank() {
  local pid
  pid=$(rank_process "$victim")
  for _ in $(seq 20); do
    kill -STOP "$pid" && sleep 0.05 && kill -CONT "$pid" && sleep 0.05 || break
  done 2>/dev/null  # it may come to its end meanwhile
}
double_fault() { class='killed|unknown'; kill -KILL $(ranks); }
fault_in_recovery() {
  class=killed
  signal_rank KILL
  second_start() { [ "$(events start | wc -l)" -ge 2 ] && [ -n "$(ranks)" ]; }
  comes 60 second_start
  kill -KILL "$(ranks | sed -n 1p)" || true
}
disk_full() {  # nothing can be said on a full disk: the event of the fault may be missing, too
  cat /dev/zero >"$work/small/filler" 2>/dev/null || true
  tells() { grep -qE 'fault 1|No space' "$run.log" || gone "$launcher"; }
  comes 60 tells || true
  rm -f "$work/small/filler"
  ended
  [ $code -eq 0 ] || launch "$run"  # 25: it gave up before there was room
}
broken_sync() {
  : >"$work/broken"
  tells() { grep -qE 'fault 1|Input/output' "$run.log"; }
  comes 30 tells || true
  rm -f "$work/broken"
}
slow_files() { :; }
damaged_step() {
  class=killed rank=$victim
  two_steps() { [ "$(committed | wc -l)" -ge 2 ]; }  # one to go back to
  comes 60 two_steps
  hurt=$(now)
  signal_rank KILL
  sleep 0.05  # nothing is committed any more, and the next start has not looked yet
  local file
  damaged=$(committed | tail -n 1)
  file=$(ls "$run/checkpoints/$damaged"/model/*.safetensors | sed -n 1p)
  printf '\xff\xff\xff\xff' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 8)) conv=notrunc status=none
}
lost_pages() { rm -rf "$(cat "$run"/pulse/*)"; }
preempted() {
  kill -TERM "$launcher"
  ended
  [ $code -eq 27 ] || problem "ended with $code instead of 27"
  launch "$run"
}
numeric() { class=numeric; }

is_planted() { [ -e "$mark" ]; }
plant() {  # waits until the fault was made
  comes 300 is_planted
  hurt=$(date -r "$mark" +%s.%N)
}
# The launcher has to end with this code; a person starts it again.
stops_with() {
  plant
  ended
  [ $code -eq "$1" ] || problem "ended with $code instead of $1"
  launch "$run"
}
has_skip() { grep '"event":"skip"' "$run/metrics.jsonl" | grep -q "\"step\":${bad_step}[,}]"; }
nan_gradient() {
  plant
  comes 60 has_skip || problem "step $bad_step was not skipped"
}
poisoned_sample() {
  class=numeric
  plant
  is_listed() { grep -q "\"step\":${bad_step}[,}]" "$run/skips.jsonl" 2>/dev/null; }
  comes 60 is_listed || problem "step $bad_step is not listed"
}
flipped_bit() { class=hardware rank=$victim; stops_with 29; }
other_operation() { class=mismatch; stops_with 30; }

# --- a run with a fault

problem() { echo "faults: $kind, seed $seed: $*" >&2; bad=1; }

prepare() {
  variables=(OMPI_ALLOW_RUN_AS_ROOT=1) more=() starter=mpirun program=$ashlar
  class='' rank='' damaged='' code=0 bad=0 bad_step='' reference=$work/calm
  victim=$((seed % 2)) moment=$((22 + seed * 37 % 50))
  run=$work/$kind-$seed mark=$work/$kind-$seed.mark
  case $kind in
    kill_process) starter=threads ;;
    disk_full)
      mkdir -p "$work/small"
      mount -t tmpfs -o size=64m none "$work/small" || return 1
      run=$work/small/run
      ;;
    broken_sync) variables+=(LD_PRELOAD="$slow_disk" ASHLAR_BROKEN_DISK="$work/broken") ;;
    slow_files) variables+=(LD_PRELOAD="$slow_disk" ASHLAR_SLOW_DISK_MBPS=5) ;;
    hang) moment=$((22 + seed % 20)) ;;  # early: a rank at its end may wait for a disk for 300 s
    numeric) more=(optim.lr=1e38 optim.lr_min=1e38) ;;
    nan_gradient) prepare_plant nan && pass_step ;;
    poisoned_sample)
      prepare_plant poison && pass_step
      more=(health.max_consecutive_skips=1 launch.on_numeric=skip_samples)
      ;;
    flipped_bit)
      prepare_plant "flip $((seed % 8))"
      more=(health.replay_every=1)
      ;;
    other_operation) prepare_plant other_op ;;
  esac
  rm -rf "$run" "$run.log" "$mark"
}

# The fault comes in one of five steps, none of which is saved.
planted_step() { echo $((31 + seed % 5 * 7)); }
prepare_plant() {
  program=$planted moment=22
  variables+=(ASHLAR_PLANT="$1:$(sed -n "$(planted_step)p" "$work/batches.$victim"):$mark")
}
pass_step() {
  bad_step=$(planted_step)
  reference=$work/calm-$bad_step
}

# A run that nobody disturbs; without the update of one step, if it is given.  Leaves losses and sums of every step.
make_reference() {  # DIRECTORY [STEP]
  [ ! -e "$1/losses" ] || return 0
  local seed=0 kind=calm first=$((($2 - 1) * 4)) step
  prepare
  mkdir -p "$run" "$1"
  [ "$2" -eq 0 ] || echo "{\"step\":$2,\"samples\":[$first],\"reason\":\"campaign\"}" >"$run/skips.jsonl"
  launch "$run" && wait "$launcher"
  for step in "$run"/checkpoints/step-*; do tensors "$step" >"$1/$(basename "$step").sums"; done
  losses "$run" "$2" >"$1/losses"
  rm -rf "$run" "$run.log"
}

# The tokens of every step, and that the program with planted faults computes the same if there are none.
show_batches() {
  [ ! -e "$work/batches.1" ] || return 0
  local seed=0 kind=shown
  prepare
  program=$planted variables+=(ASHLAR_SHOW_BATCHES="$work/new")
  launch "$run" && wait "$launcher"
  cmp <(losses "$run" 0) "$work/calm/losses"
  mv "$work/new.0" "$work/batches.0"
  mv "$work/new.1" "$work/batches.1"
  rm -rf "$run" "$run.log"
}

# The classes of the last launcher's time add up to its wall time.
adds_up() {
  events stop | tail -n 1 | sed 's/.*"wall_s":\([0-9.e+-]*\),.*"goodput":{\(.*\)}.*/\1 \2/' |
    awk '{ n = split($2, parts, /[:,]/)
           for (i = 2; i <= n; i += 2) sum += parts[i]
           exit !(n >= 20 && sum > 0.999 * $1 && sum < 1.001 * $1) }'
}

check_end() {
  local want=0 step
  [ "$kind" != numeric ] || want=23
  [ "$code" -eq $want ] || problem "ended with $code instead of $want: $(tail -n 1 "$run.log")"
  [ -z "$(ranks)" ] || problem "processes are left: $(ranks | tr '\n' ' ')"
  ! grep -q "@ashlar-launch-$launcher-" /proc/net/unix || problem "a socket is left"
  [ ! -e "$(cat "$run"/pulse/* 2>/dev/null)" ] || problem "pages are left"
  adds_up || problem "the goodput does not add up to the wall time"
  [ "$kind" != numeric ] || return 0
  cmp -s <(losses "$run" "${bad_step:-0}") <(without "${bad_step:-0}" <"$reference/losses") || problem "the losses differ"
  for step in $promised; do
    [ "$step" = "$damaged" ] || [ -e "$run/checkpoints/$step/COMMIT" ] || problem "$step is lost"
  done
  for step in $(committed); do
    [ ! -e "$reference/$step.sums" ] || cmp -s <(tensors "$run/checkpoints/$step") "$reference/$step.sums" ||
      problem "$step has other bytes"
  done
  [ -z "$damaged" ] || [ "$(sed -n 's/.*continuing after step \([0-9]*\).*/\1/p' "$run.log" | tail -n 1)" -lt \
    $((10#${damaged#step-})) ] || problem "the damaged step was taken for a good one"
  [ -e "$run/checkpoints/step-$(printf %012d $steps)/COMMIT" ] || problem "the last step is missing"
}

# Adds the run to the results: whether it ended as it must, whether its fault was named rightly, seconds to its name and
# to the next first step, steps lost ("-": none).
note_result() {
  local fault name detected=- restarted=- lost=- named=wrong
  fault=$(events fault | sed -n 1p)
  name=$(text_of class <<<"$fault")
  if [[ $name =~ ^($class)$ ]] && [[ -z $rank || $(number_of rank <<<"$fault") = "$rank" ]]; then
    named=right
  elif [ "$kind" = disk_full ] || [ "$kind" = broken_sync ]; then  # whether a save retried in time is a matter of luck
    [[ ! $name =~ ^(|storage)$ ]] || named=right
  fi
  [ $named = right ] ||
    echo "faults: $kind, seed $seed: named '$name' of rank $(number_of rank <<<"$fault"), not '$class' of '$rank'" >&2
  if [ -n "$fault" ]; then
    detected=$(awk -v t="$(number_of t <<<"$fault")" -v hurt="$hurt" 'BEGIN { printf "%.2f", t - hurt }')
    restarted=$(events first_step | number_of restart_s | grep . || echo -)
    lost=$(events action | number_of steps_lost | grep . || echo -)
  fi
  [ $named = right ] || keep=1
  echo "$kind $seed $([ "$bad" -eq 0 ] && echo right || echo wrong) $named $detected $restarted $lost" >>"$work/results"
}

one_run() {
  local moment keep=0
  prepare || { echo "$kind $seed none" >>"$work/results"; return 0; }
  launch "$run"
  reached() { [ "$(rows)" -ge $moment ] || gone "$launcher"; }
  [ "$kind" = numeric ] || comes 600 reached || problem "it does not train"
  promised=$(committed)
  hurt=$(now)
  "$kind" || problem "the fault could not be made"
  if comes 900 gone "$launcher"; then
    ended
  else
    problem "it does not end"
    kill -KILL "$launcher" $(ranks) || true
  fi
  check_end
  note_result
  [ "$kind" != disk_full ] || umount "$work/small" || umount -l "$work/small"
  [ $bad -ne 0 ] || [ $keep -ne 0 ] || rm -rf "$run" "$run.log" "$mark"
}

column() { awk -v kind="$kind" -v c="$1" '$1 == kind && $3 != "none" && $c != "-" { print $c }' "$work/results"; }
share() {  # PERCENT COLUMN: that percentile of its numbers, or "-"
  column "$2" | sort -n | awk -v p="$1" '
    { v[NR] = $1 }
    END { if (NR) printf "%.2f", v[int((NR - 1) * p / 100 + 0.5) + 1]; else printf "-" }'
}
count() { column "$1" | grep -c "$2" || true; }

echo "load at the start: $(cut -d' ' -f1-3 /proc/loadavg)"
make_reference "$work/calm" 0
show_batches
for seed in $(seq "$runs"); do
  for kind in $kinds; do
    [ "$minutes" -eq 0 ] || [ $SECONDS -lt $((60 * minutes)) ] || break 2
    ! grep -q "^$kind $seed " "$work/results" || continue
    case $kind in nan_gradient | poisoned_sample) make_reference "$work/calm-$(planted_step)" "$(planted_step)" ;; esac
    one_run
  done
done
printf '%-18s %5s %6s %6s %15s %17s %10s\n' kind runs right named 'detect p50 p99' 'restart p50 p99' 'steps lost'
for kind in $kinds; do
  printf '%-18s %5d %6d %6d %7s %7s %8s %8s %10s\n' "$kind" "$(count 3 .)" "$(count 3 right)" "$(count 4 right)" \
    "$(share 50 5)" "$(share 99 5)" "$(share 50 6)" "$(share 99 6)" "$(column 7 | sort -n | tail -n 1 | grep . || echo -)"
done
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
! grep -q wrong "$work/results"
