#!/usr/bin/env bash
# Packs what scripts/gpu_window.sh needs on a machine that has a card and lacks Debian's libraries: the program, its
# tests with the golden models, and its tool, all with kernels for that card, and the shared libraries that they load.
#
#   scripts/gpu_package.sh cuda|hip [DIRECTORY]     builds with that preset; DIRECTORY: build/gpu_package
#
# The programs look for libraries, the C++ runtime among them, in lib beside them, and have no symbols.  DIRECTORY.tar.gz
# is what travels, and scripts/gpu_window.sh unpacks it; more than 40 MiB are an error, for what travels is small.
set -euo pipefail
cd "$(dirname "$0")/.."
vendor=${1:-} to=${2:-build/gpu_package} most_mib=40 pairs=(ashlar:ashlar)
case $vendor in
  cuda | hip) ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
build=build/$vendor
scripts/build "$vendor" --target ashlar "gpu_${vendor}_test" "gpu_${vendor}_tool" "gpu_${vendor}_golden"

rm -rf "$to" && mkdir -p "$to/lib"
for program in test tool golden; do pairs+=("gpu_${vendor}_$program:gpu_$program"); done
for pair in "${pairs[@]}"; do
  strip -o "$to/${pair#*:}" "$build/${pair%:*}"
done
# All but the C library and what belongs to the driver, which the other machine has.
ldd "$to"/{ashlar,gpu_{test,tool,golden}} | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libcuda)\.so' | xargs cp -Lt "$to/lib"
strip "$to"/lib/*
# Libraries of Debian that state places of their own would look for their like there alone.
for library in "$to"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
for program in "$to"/{ashlar,gpu_{test,tool,golden}}; do
  readelf -d "$program" | grep -qE 'RPATH.*\$ORIGIN/lib' ||
    { echo "gpu_package: $program does not look for libraries in \$ORIGIN/lib" >&2; exit 1; }
done
left=$(ldd "$to"/{ashlar,gpu_{test,tool,golden}} | awk '$3 ~ /^\// { print $3 }' |
  grep -vE "^$(readlink -f "$to")/|/(libc|libm|libpthread|libdl|librt|libcuda)\.so" || true)
[ -z "$left" ] || { echo "gpu_package: not of the package: $left" >&2; exit 1; }
cp tests/kernels/gpu/checksums.txt "$to/"
git rev-parse HEAD >"$to/commit"
tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
mib=$(du -sm "$to.tar.gz" | cut -f1)
[ "$mib" -le "$most_mib" ] || { du -a "$to" | sort -n | tail -n 8 >&2; echo "gpu_package: $mib MiB, at most $most_mib" >&2; exit 1; }
echo "gpu_package: $to.tar.gz, $mib MiB: $(git rev-parse --short HEAD) for $vendor"
