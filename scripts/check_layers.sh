#!/usr/bin/env bash
# Fails if a module includes a header of a module that its USES line in CMakeLists.txt does not allow,
# or uses a module that stands below it there.
set -euo pipefail
status=0
declare -A uses
while read -r line; do
  name=$(sed -E 's/^ashlar_module\((\w+).*/\1/' <<<"$line")
  named=$(sed -nE 's/.* USES ([a-z ]+).*/\1/p' <<<"$line")
  for used in $named; do
    [ -n "${uses[$used]+x}" ] || { echo "CMakeLists.txt: $name uses $used, which stands below it"; status=1; }
  done
  uses[$name]=" $name $named "
done < <(grep -E '^ashlar_module\(' CMakeLists.txt | tr -s ' ')
[ "${#uses[@]}" -gt 0 ] || { echo "CMakeLists.txt: no ashlar_module found"; exit 1; }
while IFS=: read -r path number include; do
  module=$(cut -d/ -f2 <<<"$path")
  used=$(sed -E 's|.*"ashlar/(\w+)/.*|\1|' <<<"$include")
  case "${uses[$module]:-}" in
    *" $used "*) ;;
    *) echo "$path:$number: $module may not include $used (uses:${uses[$module]:- nothing})"; status=1 ;;
  esac
done < <(grep -rnE '^#include "ashlar/' ashlar --include='*.h' --include='*.cpp' --include='*.cu')
exit $status
