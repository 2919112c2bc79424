#!/usr/bin/env bash
# Flow sets (ashlar/sim/flow_sets.h) against SimGrid's model CM02: 20 random patterns of traffic over 8 to 64 hosts, built
# and run by simgrid.cpp.  A line for each pattern; exit code 1 if the time of a flow differs by more than 3 %, 77 where
# SimGrid is missing.
#
#   scripts/peers/simgrid.sh
#
# It needs SimGrid, which is not installed by it: apt-get install libsimgrid-dev (Debian 12: 3.32, LGPL 2.1).
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! printf '#include <simgrid/s4u.hpp>\n' | g++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
  echo "skipped: SimGrid is missing; apt-get install libsimgrid-dev" >&2
  exit 77
fi
mkdir -p build/peers
g++ -std=c++20 -O2 -Wall -Wextra -I. -o build/peers/simgrid scripts/peers/simgrid.cpp ashlar/sim/flow_sets.cpp \
  ashlar/core/error.cpp ashlar/core/text.cpp ashlar/core/utf8.cpp -lsimgrid -lfmt
exec build/peers/simgrid "$@"
