#!/usr/bin/env bash
# Fails if a kernel (a .cu file) steps out of the language of docs/gpu.md: if it includes anything but that language and
# headers of the project's own structs, names a vendor's function or an atomic operation, or computes with plain operators
# of float (ashlar/kernels/gpu/strict.h).  First it checks itself: every file of tests/kernels/gpu/bad is to be rejected
# with the words of its first line.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${CXX:-g++}
language='ashlar/kernels/gpu/(attention_tiles|device|gpu|head_lanes|launch|math|row_lanes|rows|scores|tile)\.h|tests/kernels/gpu/[a-z_]+\.h'
vendor='threadIdx|blockIdx|blockDim|__[a-z]+|\b(cuda|hip)[A-Z][A-Za-z]*|\basm\b|<<<'

# complaints FILE: prints what is wrong with it.
complaints() {
  grep -nE '^ *# *include' "$1" | grep -vE "^[0-9]+:#include \"($language)\"$" |
    sed "s|^|$1:|; s|\$|: a kernel includes the language alone|" || true
  sed 's|//.*||' "$1" | grep -nE "$vendor" | sed "s|^|$1:|; s|\$|: a name of a vendor|" || true
  sed 's|//.*||' "$1" | grep -nE 'atomic' | sed "s|^|$1:|; s|\$|: no atomics, a second launch sums|" || true
  for warp in 32 $(grep -l '"ashlar/kernels/gpu/tile.h"' "$1" >/dev/null && echo 64); do
    "$compiler" -std=c++20 -I. -fsyntax-only -Wno-unknown-pragmas -DASHLAR_STRICT "-DASHLAR_WARP=$warp" \
      -include ashlar/kernels/gpu/strict.h -x c++ "$1" 2>&1 | grep -E 'error:' || true
  done
}

status=0
for file in tests/kernels/gpu/bad/*.cu; do
  want=$(sed -n '1s|^// ||p' "$file")
  complaints "$file" | grep -qF "$want" || { echo "$file: not rejected with the words: $want"; status=1; }
done
for file in ashlar/kernels/gpu/*.cu tests/kernels/gpu/*.cu; do
  found=$(complaints "$file")
  [ -z "$found" ] || { echo "$found"; status=1; }
done
exit $status
