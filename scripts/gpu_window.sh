#!/usr/bin/env bash
# What a GPU shows in the minutes in which it is at hand.  Three windows, each one command and complete by itself:
#
#   scripts/gpu_window.sh correctness [SECONDS]   ops, bits, training, resume (360 s)
#   scripts/gpu_window.sh sanitizers [SECONDS]    golden models, losses; compute-sanitizer, planted faults as controls (540 s)
#   scripts/gpu_window.sh benches [SECONDS]       ops and steps, in turns with PyTorch on the same card; counters (540 s)
#   scripts/gpu_window.sh lines WINDOW            the lines of its report: name, bar, unit
#   scripts/gpu_window.sh table FILE...           the table of a report that an earlier window wrote
#
# Every part has a deadline, the most valuable come first, and a part that needs a failed one does not run.  Settings of
# the card are never touched.
#
#   PACKAGE=DIR   the programs: what scripts/gpu_package.sh made (build/gpu_package), unpacked from DIR.tar.gz where DIR
#                 is not there; or `emulator`: those of build/release, on small sizes, to try this script
#   OUT=DIR       the report: WINDOW.jsonl, a record a line as it is measured, and WINDOW.log (runs/gpu_window)
#   PEERS, SANITIZER, NCU   commands in place of scripts/gpu/peers.py, compute-sanitizer and ncu
#
# Exit code: 0 every line passes; 1 one is low, or a part failed; 3 neither, but something did not run.
set -u
cd "$(dirname "$0")/.." || exit
package=${PACKAGE:-build/gpu_package} out=${OUT:-runs/gpu_window}
shapes=scripts/gpu/shapes.txt repeats=50 steps=50 resume_steps=400 long_steps=200 filter='*' recipe=recipes/llama-nano.toml
keys=(train.eval_every=0 health.max_norm_ratio=1e9 health.max_loss_rise=1e9)
if [ "$package" = emulator ]; then
  test=${BUILD:-build/release}/gpu_32_test tool=${BUILD:-build/release}/gpu_32_tool ashlar=${BUILD:-build/release}/ashlar_emulator_32
  golden=${BUILD:-build/release}/gpu_train_32_test
  shapes=scripts/gpu/shapes-small.txt repeats=2 steps=4 resume_steps=40 long_steps=4
  keys+=(model.{hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=16}
    model.{intermediate_size=96,vocab_size=320} data.sequence_length=64 train.{micro_batch,global_batch}=2)
  filter='GpuUpdate.SumOfSquaresMatches*:GpuSwiglu.*:Language.Sums*'
else
  if [ ! -d "$package" ] && [ -f "$package.tar.gz" ]; then
    tar -C "$(dirname "$package")" -xzf "$package.tar.gz" || exit 2
  fi
  test=$package/gpu_test tool=$package/gpu_tool ashlar=$package/ashlar golden=$package/gpu_golden
  export ASHLAR_GPU_CHECKSUMS=$package/checksums.txt
fi
tools=(racecheck memcheck initcheck synccheck)
# Nsight Compute counts duration, traffic of the card's memory, busy tensor pipes and achieved occupancy.
counted=gpu__time_duration.sum,dram__bytes.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed
counted+=,sm__warps_active.avg.pct_of_peak_sustained_active

# ---- The lines of a report: name|bar|unit.  A line without a value, or of a part that failed, did not run.
lines_of() {
  case $1 in
    correctness)
      printf '%s\n' 'ops: tests that ran|>= 1|tests' 'ops: tests that fail|<= 0|tests' \
        'bits, idle: tests that differ in repeats|<= 0|tests' 'bits, busy: tests that differ in repeats|<= 0|tests' \
        'training: steps that differ in two runs|<= 0|steps' 'training: weights that differ in two runs|<= 0|tensors' \
        'resume: steps that differ from a run in one go|<= 0|steps' ;;
    sanitizers)
      printf '%s\n' 'golden models: families that ran|>= 5|models' 'golden models: families that fail|<= 0|models' \
        'golden models: largest difference of losses|<= 1e-4|of the loss' \
        'losses, fp32: largest difference in the first 50 steps|<= 1e-4|of the loss' \
        'losses, fp32: difference at the end|<= 2e-3|of the loss' \
        'losses, bf16: difference beyond that of two instruction sets|<= 1e-3|nats'
      for name in "${tools[@]}"; do
        [ "$name" = initcheck ] || echo "$name: planted faults that it misses|<= 0|faults"
        echo "$name: good kernels that it accuses|<= 0|kernels"
        echo "$name: tests that it finished|>= 1|tests"
        echo "$name: tests that it accuses|<= 0|tests"
      done ;;
    benches)
      awk '$1 == "product" || $1 == "grouped" {
             bar = $1 == "product" ? 0.97 : 0.95
             print $2 " forward|>= " bar "|of the peer"
             print $2 " backward_input|>= " bar "|of the peer"
             print $2 " backward_weight|>= " bar "|of the peer" }
           $1 == "attention" { print $2 " forward|>= 0.6|of the peer"; print $2 " backward|>= 0.6|of the peer" }
           $1 == "rms_norm" || $1 == "swiglu" { print $2 " forward|>= 1|of the peer"; print $2 " backward|>= 1|of the peer" }
           $1 == "cross_entropy" || $1 == "adamw" || $1 == "newton_schulz" { print $2 "|>= 1|of the peer" }
           $1 == "step" { print $2 " step|>= " $5 "|of the peer"; print $2 " MFU|>= " $4 "|of 989 TFLOP/s"
                          print $2 " first step|<= " $6 "|s" }' "$shapes"
      echo 'counters: kernels with all numbers|>= 5|kernels' ;;
    *) return 2 ;;
  esac
}

# ---- The table of reports.  A bench counts as the lesser of its two turns over the best of its peers, whose names go on
# behind a comma.
table() { # FILE...: prints it, and returns the exit code of this script
  local window
  window=$(sed -nE '1s/^\{"window":"([^"]*)".*/\1/p' "$1")
  [ -n "$window" ] || { echo "gpu_window: $1 is no report" >&2; return 2; }
  lines_of "$window" | awk -F '|' '
    function text_after(key,   rest) { rest = $0; return sub(".*\"" key "\":\"", "", rest) ? substr(rest, 1, index(rest, "\"") - 1) : "" }
    function number_after(key,   rest) { rest = $0; return sub(".*\"" key "\":", "", rest) ? rest + 0 : "" }
    FNR == NR { name[++n] = $1; bar[n] = $2; unit[n] = $3; next }
    !/^\{/ { next }
    {
      part = text_after("part"); key = text_after("name")
      if (key == "verdict") { ended[++parts] = "part " part ": " text_after("text"); next }
      if (key ~ /^kernel [0-9]+$/) {
        counters = counters "| " text_after("kernel") " | " number_after("us") " | " number_after("dram_gb_s") " | " \
          number_after("tensor_percent") " | " number_after("occupancy_percent") " |\n"
        next
      }
      if (!/"value":/) { facts = facts "\n" key ": " text_after("text"); next }
      value = number_after("value")
      if (part == "peers") {
        sub(/,.*/, "", key)
        if (!(key in peer) || value > peer[key]) peer[key] = value
      } else if (part == "own" || part == "own_again" || (part == "steps" && key ~ /[^t] step$/)) {
        if (!(key in own) || value < own[key]) own[key] = value
      } else { found[key] = value; part_of[key] = part }
    }
    END {
      print "| line | bar | value | verdict |"; print "|---|---|---|---|"
      for (i = 1; i <= n; ++i) {
        key = name[i]
        if (unit[i] == "of the peer" && key in own && key in peer && peer[key] > 0) found[key] = own[key] / peer[key]
        verdict = "not run"; value = ""
        if (key in found) {
          value = sprintf("%.4g", found[key]); split(bar[i], b, " ")
          verdict = (b[1] == ">=" ? found[key] >= b[2] + 0 : found[key] <= b[2] + 0) ? "pass" : "low"
        }
        if (verdict == "low") low = 1
        if (verdict == "not run") open = 1
        print "| " key " | " bar[i] " " unit[i] " | " value " | " verdict " |"
      }
      if (counters) {
        print "\n| kernel | us | GB/s of DRAM | tensor pipe busy, % | occupancy, % |\n|---|---|---|---|---|"
        printf "%s", counters
      }
      print ""
      for (i = 1; i <= parts; ++i) {
        if (ended[i] !~ /: ok$/) print ended[i]
        if (ended[i] ~ /: failed$/) low = 1
      }
      print substr(facts, 2)
      exit low ? 1 : open ? 3 : 0
    }' - "$@"
}

window=${1:-}
case $window in
  correctness) total=360 ;;
  sanitizers | benches) total=540 ;;
  lines) lines_of "${2:-}"; exit ;;
  table) shift; table "${@:?a report}"; exit ;;
  *) sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
total=${2:-$total}
mkdir -p "$out"
report=$out/$window.jsonl log=$out/$window.log work=$(mktemp -d)
: >"$report"
: >"$log"
declare -A ended=()
trap 'rm -rf "$work"' EXIT

# ---- Parts.  A part is a function that prints records; 3: no device, 4: a program is missing, 5: not permitted,
# 124: out of time.
say() { printf '{"name":"%s","value":%s}\n' "$1" "$2"; }
fact() { printf '{"name":"%s","text":"%s"}\n' "$1" "$(tr -d '"\\\r' <<<"${2:-none}" | tr '\n\t' '; ' | cut -c1-300 | sed 's/[; ]*$//')"; }
left() { echo $((until - SECONDS > 1 ? until - SECONDS : 1)); }
run() { timeout -k 5 "$(left)" "$@"; }
record() { printf '{"window":"%s","part":"%s",%s\n' "$window" "$part" "${1#\{}" >>"$report"; }

part() { # NAME SECONDS [PART THAT IT NEEDS]...
  local begin=$SECONDS verdict need
  part=$1 until=$((SECONDS + $2 < total - 5 ? SECONDS + $2 : total - 5))
  for need in "${@:3}"; do
    [ "${ended[$need]:-}" = ok ] || { ended[$part]="needs $need"; break; }
  done
  if [ -z "${ended[$part]:-}" ]; then
    if [ $((until - SECONDS)) -lt 2 ]; then
      ended[$part]='no time left'
    else
      echo "== $part" >>"$log"
      "part_$part" 2>>"$log" | while IFS= read -r line; do
        case $line in '{"'*) record "$line" ;; *) printf '%s\n' "$line" >>"$log" ;; esac
      done
      case ${PIPESTATUS[0]} in
        0) verdict=ok ;; 3) verdict='no device' ;; 4) verdict='not found' ;; 5) verdict='not permitted' ;; 124 | 137) verdict='out of time' ;; *) verdict=failed ;;
      esac
      ended[$part]=$verdict
    fi
  fi
  record "$(printf '{"name":"verdict","text":"%s","seconds":%s}' "${ended[$part]}" $((SECONDS - begin)))"
  printf '%-12s %-14s %s s\n' "$part" "${ended[$part]}" $((SECONDS - begin))
}

part_probe() {
  local program
  fact commit "$(cat "$package/commit" 2>/dev/null || git rev-parse --short HEAD 2>/dev/null)"
  fact machine "$(uname -srm), $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  ! command -v nvidia-smi >/dev/null || fact gpu "$(run nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader 2>&1 | head -n 1)"
  for program in "$test" "$tool" "$ashlar"; do
    [ -x "$program" ] || { fact missing "$program"; return 4; }
  done
  run "$tool" device
}

# Runs tests; `ran` and `bad` are how many ran and how many failed.
run_program() { # PROGRAM FILTER
  local code=0
  run "$1" --gtest_filter="$2" --gtest_output="xml:$work/tests.xml" --gtest_brief=1 1>&2 || code=$?
  [ "$code" -le 1 ] || return "$code"
  read -r ran bad <<<"$(awk '/<testcase .*result="completed"/ { ++ran; counted = 0 }
    /<failure / && !counted { ++bad; counted = 1 } END { print ran + 0, bad + 0 }' "$work/tests.xml")"
}
run_tests() { ASHLAR_GPU_REPEATS=${1:-1} run_program "$test" "$filter"; } # [REPEATS]

part_ops() {
  run_tests || return
  say 'ops: tests that ran' "$ran"
  say 'ops: tests that fail' "$bad"
  [ "$bad" -eq 0 ] && [ "$ran" -gt 0 ]
}
part_bits() {
  run_tests "$repeats" || return
  say 'bits, idle: tests that differ in repeats' "$bad"
}
part_busy() { # another process uses the card meanwhile
  local other code=0
  (while :; do timeout "$(left)" "$test" --gtest_filter="$filter" --gtest_brief=1; done >/dev/null 2>&1) &
  other=$!
  run_tests "$repeats" || code=$?
  kill -STOP "$other"   # it must outlive its child, which nothing would find otherwise
  pkill -P "$other"
  kill -KILL "$other"
  [ "$code" -eq 0 ] && say 'bits, busy: tests that differ in repeats' "$bad"
  return "$code"
}

arguments() { # DIRECTORY STEPS KEYS...: sets `command`
  command=("$ashlar" train "$recipe" "${keys[@]}" data.train="$work/text" train.run_dir="$work/$1" train.steps="$2"
    checkpoint.every="$2" "${@:3}")
}
train() { # DIRECTORY STEPS KEYS...
  local command
  arguments "$@"
  run "${command[@]}" 1>&2
}
losses() { sed -nE 's/^\{"step":([0-9]+),.*"loss":([^,]*),.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
differing() { diff <(losses "$1") <(losses "$2") | grep -c '^[<>]'; }

part_data() { "$ashlar" data prepare --input README.md docs/*.md --tokenizer byte --out "$work/text" 1>&2; }
part_training() {
  local name
  for name in first second; do train "$name" "$steps" train.device=gpu || return; done
  [ "$(losses first | wc -l)" -eq "$steps" ] || return 1
  say 'training: steps that differ in two runs' "$(differing first second)"
  run "$ashlar" ckpt diff --values --component model "$work"/{first,second}/checkpoints >"$work/diff"
  case $? in
    0) say 'training: weights that differ in two runs' 0 ;;
    1) say 'training: weights that differ in two runs' 1 ;;
    *) return 1 ;;
  esac
  cat "$work/diff" >&2
}
part_resume() { # killed as soon as its first save is there
  local killed command save=checkpoint.every=$((resume_steps / 10))
  train straight "$resume_steps" train.device=gpu "$save" || return
  arguments killed "$resume_steps" train.device=gpu "$save"
  "${command[@]}" 1>&2 &
  killed=$!
  while [ ! -e "$work/killed/checkpoints/LATEST" ] && kill -0 "$killed" && [ "$(left)" -gt 1 ]; do sleep 0.02; done
  kill -KILL "$killed"
  wait "$killed"
  [ "$(losses killed | wc -l)" -lt "$resume_steps" ] || { echo 'the run ended before it was killed' >&2; return 1; }
  run "${command[@]}" 1>&2 || return
  say 'resume: steps that differ from a run in one go' "$(differing straight killed)"
}

part_golden() { # models that transformers saved: its losses, and the gradients of the CPU
  [ -x "$golden" ] || { fact missing "$golden"; return 4; }
  ASHLAR_FIXTURES=tests/fixtures run_program "$golden" '*GpuGolden*' || return
  say 'golden models: families that ran' "$ran"
  say 'golden models: families that fail' "$bad"
  say 'golden models: largest difference of losses' "$(sed -nE 's/.*name="loss_difference" value="([^"]*)".*/\1/p' "$work/tests.xml" |
    sort -g | tail -n 1)"
  [ "$bad" -eq 0 ] && [ "$ran" -gt 0 ]
}

# Largest relative difference of losses in steps up to LAST, and that of the last step.
relative() { # A B LAST
  paste <(losses "$1") <(losses "$2") | awk -v last="$3" '
    { d = ($2 - $4) / $2; if (d < 0) d = -d; if ($1 <= last && d > most) most = d }
    END { print most + 0, d + 0 }'
}
# Largest difference of two curves that are smoothed over ten steps.
smoothed() { # A B
  paste <(losses "$1") <(losses "$2") | awk '
    { a[NR] = $2 - $4; sum += a[NR] - (NR > 10 ? a[NR - 10] : 0); n = NR < 10 ? NR : 10; d = sum / n; if (d < 0) d = -d; if (NR >= 10 && d > most) most = d }
    END { if (NR < 10) most = d; print most + 0 }'
}
part_losses() {
  local device other difference
  for device in gpu cpu; do
    train "fp32-$device" "$long_steps" "train.device=$device" train.precision=fp32 || return
    train "bf16-$device" "$long_steps" "train.device=$device" train.precision=bf16 || return
  done
  ASHLAR_ISA=avx2 train bf16-other "$long_steps" train.device=cpu train.precision=bf16 || return
  read -r difference other <<<"$(relative fp32-cpu fp32-gpu 50)"
  say 'losses, fp32: largest difference in the first 50 steps' "$difference"
  say 'losses, fp32: difference at the end' "$other"
  say 'losses, bf16: difference beyond that of two instruction sets' \
    "$(awk -v a="$(smoothed bf16-cpu bf16-gpu)" -v b="$(smoothed bf16-cpu bf16-other)" 'BEGIN { print a - b }')"
}

# silent, found, or what kept a tool from an answer.
sanitized() { # TOOL COMMAND...
  local code seconds=20
  [ "$(left)" -lt "$seconds" ] && seconds=$(left)
  timeout -k 2 "$seconds" "$sanitizer" --tool "$1" --error-exitcode 9 "${@:2}" >"$work/said" 2>&1
  code=$?
  { echo "-- $*: $code"; tail -n 5 "$work/said"; } >&2
  case $code in 0) echo silent ;; 9) echo found ;; *) echo "not run, $code" ;; esac
}
faults_of() {
  case $1 in
    racecheck) echo kNoBarrierInSum kNoBarrierBeforeReuse kNoBarrierAfterWait kStageOverwritten ;;
    memcheck) echo kWritesPastEnd kReadsPastEnd kMisalignedVector kSharedOverrun ;;
    synccheck) echo kBarrierInBranch kHalfOfLanes ;;
  esac
}
part_controls() {
  local name fault missed accused answer
  sanitizer=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)}
  [ -n "$sanitizer" ] || return 4
  for name in "${tools[@]}"; do
    missed=0 accused=0
    for fault in $(faults_of "$name"); do
      answer=$(sanitized "$name" "$tool" fault "$fault")
      fact "$name of $fault" "$answer"
      case $answer in found) ;; silent) missed=$((missed + 1)) ;; *) continue 2 ;; esac
    done
    for fault in rows stages blocks tile; do
      answer=$(sanitized "$name" "$tool" fault "good-$fault")
      case $answer in silent) ;; found) accused=$((accused + 1)) ;; *) continue 2 ;; esac
    done
    [ "$name" = initcheck ] || say "$name: planted faults that it misses" "$missed"
    say "$name: good kernels that it accuses" "$accused"
    echo "$name" >>"$work/usable"
  done
  [ -s "$work/usable" ]
}
part_sanitizers() {
  local name case finished accused
  sanitizer=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)}
  "$test" --gtest_list_tests --gtest_filter="$filter" | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }' >"$work/cases"
  while read -r name; do
    finished=0 accused=0
    while read -r case; do
      [ "$(left)" -gt 3 ] || break
      case $(sanitized "$name" "$test" --gtest_filter="$case" --gtest_brief=1 </dev/null) in
        silent) finished=$((finished + 1)) ;;
        found) finished=$((finished + 1)) accused=$((accused + 1)); fact "$name accuses" "$case" ;;
      esac
    done <"$work/cases"
    say "$name: tests that it finished" "$finished"
    say "$name: tests that it accuses" "$accused"
    fact "$name" "$finished of $(wc -l <"$work/cases") tests"
  done <"$work/usable"
}

part_steps() { # whole steps of the models that the shapes name
  local name gflop model_recipe model_keys tokens_s
  while read -r _ name gflop _ _ _ model_recipe model_keys; do
    # shellcheck disable=SC2086
    recipe=$model_recipe train "$name" 8 train.device=gpu checkpoint.every=0 $model_keys || continue
    tokens_s=$(sed -nE 's/^\{"step":[0-9]+,.*"tokens_per_s":([^,]*),.*/\1/p' "$work/$name/metrics.jsonl" | tail -n +3 | sort -g |
      awk '{ t[NR] = $1 } END { if (NR) print t[int((NR + 1) / 2)] }')
    [ -n "$tokens_s" ] || continue
    say "$name step" "$tokens_s"
    say "$name first step" "$(sed -nE 's/.*"event":"first_step","seconds":([0-9.]+).*/\1/p' "$work/$name/metrics.jsonl" | head -n 1)"
    say "$name MFU" "$(awk -v t="$tokens_s" -v g="$gflop" 'BEGIN { print t * g / 989e3 }')"
  done < <(grep '^step ' "$shapes")
}
part_own() { run "$tool" bench "$shapes" $(($(left) - 3)); }
part_own_again() { run "$tool" bench "$shapes" $(($(left) - 3)); }
part_peers() {
  local command=${PEERS:-python3 scripts/gpu/peers.py}
  # shellcheck disable=SC2086
  run $command "$shapes" $(($(left) - 3))
}
# Counters of the kernels that take longest when each op of the file runs once.  5: the driver keeps counters for root.
part_counters() {
  local code=0
  ncu=${NCU:-$(command -v ncu)}
  [ -n "$ncu" ] || return 4
  run "$ncu" --csv --print-units base --clock-control none --metrics "$counted" \
    "$tool" once "$shapes" $(($(left) - 3)) >"$work/counters.csv" 2>&1 || code=$?
  grep -v '^["{]' "$work/counters.csv" | tail -n 5 >&2
  ! grep -q ERR_NVGPUCTRPERM "$work/counters.csv" || return 5
  grep '^{' "$work/counters.csv"   # ops that were left out
  awk -v most=5 -f scripts/gpu/counters.awk "$work/counters.csv" >"$work/counters"
  cat "$work/counters"
  [ "$code" -eq 0 ] || return "$code"
  say 'counters: kernels with all numbers' "$(wc -l <"$work/counters")"
}

part probe 40
case $window in
  correctness)
    part ops 150 probe
    part data 20 probe
    part training 90 ops data
    part bits 90 ops
    part resume 90 training
    part busy 90 bits ;;
  sanitizers)
    part golden 60 probe
    part data 20 probe
    part controls 120 probe
    part losses 180 data
    part sanitizers 400 controls ;;
  benches)
    part own 90 probe
    part peers 200 probe
    part own_again 90 own
    part data 20 probe
    part steps 150 data
    part counters 60 own ;;
esac
echo
[ "$package" != emulator ] || echo 'On the emulator: this tries the script and says nothing about a card.'
table "$report"
