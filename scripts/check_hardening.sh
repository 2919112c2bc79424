#!/usr/bin/env bash
# Whether a program was built with Debian's hardening flags:  check_hardening.sh PROGRAM
set -euo pipefail
program=$1
missing=()
expect() {  # expect WHAT PATTERN COMMAND...
  local what=$1 pattern=$2
  shift 2
  grep -q "$pattern" <<<"$("$@")" || missing+=("$what")
}
expect "position independent (-fPIE -pie)" 'Type: *DYN' readelf --file-header "$program"
expect "read-only relocations (-z relro)" GNU_RELRO readelf --program-headers --wide "$program"
expect "bound at start (-z now)" 'FLAGS_1.*NOW' readelf --dynamic --wide "$program"
expect "stack protector (-fstack-protector-strong)" __stack_chk_fail readelf --dyn-syms --wide "$program"
expect "checked calls (-D_FORTIFY_SOURCE=2)" '__[a-z]*_chk@' readelf --dyn-syms --wide "$program"
[ ${#missing[@]} -eq 0 ] && exit 0
printf "$program lacks: %s\n" "${missing[@]}"
exit 1
