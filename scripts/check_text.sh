#!/usr/bin/env bash
# Fails on lines of C++ that pass 100 columns (but for long texts in quotes), and on comments that a reflow has torn: a line of a comment that ends short
# of 30 columns though the sentence goes on, in lower case, on the next.
set -euo pipefail
export LC_ALL=C  # awk counts bytes
find ashlar tests \( -name '*.h' -o -name '*.cpp' \) -print0 | sort -z | xargs -0 awk '
  function columns(text) { gsub(/[\200-\277]/, "", text); return length(text) }  # of UTF-8
  FNR == 1 { before = "" }
  columns($0) > 100 && !/R"|\\"/ && !/^ *"/ { printf "%s:%d: %d columns\n", FILENAME, FNR, columns($0); bad = 1 }
  {
    is_comment = $0 ~ /^ *\/\/ [^ ]/
    if (is_comment && before != "" && $0 ~ /^ *\/\/ [a-z0-9]/ && columns(before) < 30 && before !~ /[.:;,)]$/) {
      printf "%s:%d: torn comment: %s\n", FILENAME, FNR - 1, before; bad = 1
    }
    before = is_comment ? $0 : ""
  }
  END { exit bad }'
