#!/usr/bin/env bash
# Fails unless the includes of every module are those of its line `ashlar_module(NAME USES ... TEST_USES ...)` in
# CMakeLists.txt:
#   ashlar/NAME  includes headers of itself and of every module in USES, each of which stands above it;
#                of its own ROOMS, those that stand before the room of the source, and that one;
#   tests/NAME   those too, and headers of every module in TEST_USES; and headers of the tests of such modules.
# Fails too if docs/architecture.md tells of other modules than USES, if the contract of a kernel (kernels/X.cpp) looks at
# a device, or if code outside of kernels reaches behind the contracts.
set -euo pipefail
status=0
fail() {
  echo "$1"
  status=1
}
declare -A uses test_uses room_number
while read -r line; do
  name=$(sed -E 's/^ashlar_module\((\w+).*/\1/' <<<"$line")
  named=$(sed -nE 's/.* USES ([a-z ]*[a-z]).*/\1/p' <<<"$line")
  for used in $named; do
    [ -n "${uses[$used]+x}" ] || fail "CMakeLists.txt: $name uses $used, which stands below it"
  done
  grep -qF "| \`$name\` | $named${named:+ }|" docs/architecture.md ||
    fail "docs/architecture.md: the table of modules does not say that $name uses: ${named:-nothing}"
  uses[$name]=$named
  number=0
  for room in $(sed -nE 's/.* ROOMS ([a-z ]*[a-z]).*/\1/p' <<<"$line"); do room_number[$name/$room]=$((++number)); done
  test_uses[$name]=$(sed -nE 's/.* TEST_USES ([a-z ]*[a-z]).*/\1/p' <<<"$line")
done < <(grep -E '^ashlar_module\(' CMakeLists.txt | tr -s ' ')
[ "${#uses[@]}" -gt 0 ] || { echo "CMakeLists.txt: no ashlar_module found"; exit 1; }

declare -A included  # "ashlar nn core": a source of nn includes a header of core
while IFS=: read -r path number include; do
  [[ "$path $include" =~ ^(ashlar|tests)/([a-z_]+)/.*\"(ashlar|tests)/([a-z_]+)/ ]] || continue
  top=${BASH_REMATCH[1]} module=${BASH_REMATCH[2]} used=${BASH_REMATCH[4]}
  [ -n "${uses[$module]+x}" ] || continue  # tests/support, tests/integration, tests/fuzz
  [ "$used" != support ] || continue
  included["$top $module $used"]=1
  allowed=" $module ${uses[$module]} "
  [ "$top" = ashlar ] || allowed+="${test_uses[$module]} "
  [[ $allowed == *" $used "* ]] || fail "$path:$number: $module may not include $used (uses:$allowed)"
done < <(grep -rnE '^#include "(ashlar|tests)/' ashlar tests --include='*.h' --include='*.cpp' --include='*.cu')
while IFS=: read -r path number include; do
  [[ "$path $include" =~ ^ashlar/([a-z_]+)/([a-z_]+)/.*\"ashlar/([a-z_]+)/([a-z_]+)/ ]] || continue
  room=${BASH_REMATCH[1]}/${BASH_REMATCH[2]} used=${BASH_REMATCH[3]}/${BASH_REMATCH[4]}
  [ -n "${room_number[$room]+x}" ] && [ -n "${room_number[$used]+x}" ] && [ "${room%/*}" = "${used%/*}" ] || continue
  [ "${room_number[$used]}" -le "${room_number[$room]}" ] ||
    fail "$path:$number: the room $room may not include $used, which stands behind it"
done < <(grep -rnE '^#include "ashlar/[a-z_]+/[a-z_]+/' ashlar --include='*.h' --include='*.cpp')
for room in "${!room_number[@]}"; do
  [ -d "ashlar/$room" ] || fail "CMakeLists.txt: there is no room ashlar/$room"
done
for module in "${!uses[@]}"; do
  for used in ${uses[$module]}; do
    [ -n "${included["ashlar $module $used"]+x}" ] ||
      fail "CMakeLists.txt: $module uses $used, which none of its sources includes"
  done
  for used in ${test_uses[$module]}; do
    [ -n "${included["tests $module $used"]+x}" ] ||
      fail "CMakeLists.txt: TEST_USES of $module names $used, which none of its tests includes"
    [[ " ${uses[$module]} " != *" $used "* ]] || fail "CMakeLists.txt: $module names $used twice"
  done
done
while IFS= read -r line; do
  fail "$line: say the path from the repository's root"
done < <(grep -rnE '^#include "\.\./' ashlar tests --include='*.h' --include='*.cpp')
while IFS= read -r line; do
  fail "$line: a source includes nothing of tests/"
done < <(grep -rnE '^#include "tests/' ashlar --include='*.h' --include='*.cpp')
while IFS= read -r line; do
  fail "$line: a contract may not look at a device; only an implementation may"
done < <(grep -nE '\<meta\(\)|\<device\>|\<Device::|kernels/cpu/' ashlar/kernels/*.cpp)
while IFS= read -r line; do
  fail "$line: kernels are called by kernels/X.h; kernels/cpu and kernels/gpu are behind it"
done < <(grep -rnE '^#include "ashlar/kernels/(cpu|gpu)/' ashlar --include='*.h' --include='*.cpp' | grep -v '^ashlar/kernels/')
exit $status
