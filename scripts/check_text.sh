#!/usr/bin/env bash
# Fails on lines of C++ that pass 100 columns (but for long texts in quotes); on comments that a reflow has torn: a line of
# a comment that ends though the sentence goes on, in lower case, with a word that had room, or one behind code that goes on
# in the next line; on comments that begin with Of, Those, What, Who, Whoever, So many, As many or As which, which lack a
# subject (CONTRIBUTING.md); and on links of the
# documentation, to pages or to their headings, and names of pages in any file (docs/NAME.md) that lead to nothing;
# on pages that docs/README.md does not list; on a README of more than 130 lines, or without a command by line 12; and on
# pictures that scripts/draw_pictures would draw otherwise.
set -euo pipefail
export LC_ALL=C  # awk counts bytes
status=0
find ashlar tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | sort -z | xargs -0 awk '
  function columns(text) { gsub(/[\200-\277]/, "", text); return length(text) }  # of UTF-8
  FNR == 1 { before = lines[1] = lines[2] = ""; indents[1] = indents[2] = 0 }
  columns($0) > 100 && !/R"|\\"/ && !/^ *"/ { printf "%s:%d: %d columns\n", FILENAME, FNR, columns($0); bad = 1 }
  {
    is_comment = $0 ~ /^ *\/\/ [^ ]/
    if (is_comment && before != "" && $0 ~ /^ *\/\/ [a-z]/ && before !~ /[.:;!?|]$/ && index($0, "//") == index(before, "//")) {
      split(substr($0, index($0, "//") + 3), words, " ")
      if (columns(before) + 1 + columns(words[1]) <= 90) {
        printf "%s:%d: torn comment: %s\n", FILENAME, FNR - 1, before; bad = 1
      }
    }
    before = is_comment ? $0 : ""
    # A word alone in a line, as formatters leave it, before a line with another indent.
    indent = match($0, /^ *\/\/ +[^ ]/) ? RLENGTH : 0
    if (indent && indent != indents[1] && indents[1] == indents[2] && lines[1] ~ /^ *\/\/ +[a-z]+$/ && lines[2] !~ /[.:;]$/ && $0 ~ /\/\/ +[a-z]/) {
      printf "%s:%d: torn comment: %s\n", FILENAME, FNR - 1, lines[1]; bad = 1
    }
    lines[2] = lines[1]; indents[2] = indents[1]
    lines[1] = $0; indents[1] = indent
    if ((is_comment && index($0, "//") == behind_code) || $0 ~ /^ *};  \/\/ [a-z]/) {
      printf "%s:%d: a comment behind code goes on here: put it above\n", FILENAME, FNR; bad = 1
    }
    behind_code = !is_comment && match($0, /[;,{})]  \/\/ /) ? RSTART + 3 : 0
    if (match($0, /\/\/ (Of|Those|What|Who|Whoever|So many|As many|As which) /)) {
      printf "%s:%d: a comment without a subject: %s\n", FILENAME, FNR, substr($0, RSTART); bad = 1
    }
  }
  END { exit bad }' || status=1

marks='^(<<<<<<<|>>>>>>>) '  # of a merge
if grep -rnE "$marks" ashlar docs scripts tests --include='*.h' --include='*.cpp' --include='*.md' --include='*.sh'; then status=1; fi

everything=$(mktemp)
trap 'rm -f "$everything"' EXIT
find . \( -path ./.git -o -path ./build -o -path ./runs \) -prune -o -print | sed 's|^\./||' >"$everything"
{
  grep '\.md$' "$everything"
  grep -rIl 'docs/[a-z]' CMakeLists.txt ashlar cmake recipes scripts tests
} | sort -u | xargs awk -v list="$everything" -f scripts/check_links.awk "$everything" || status=1
while IFS= read -r page; do
  grep -qF "(${page#docs/})" docs/README.md || { echo "$page: docs/README.md does not list it"; status=1; }
done < <(grep '^docs/.*\.md$' "$everything" | grep -v '^docs/README.md$')
lines=$(wc -l <README.md) first=$(grep -nm1 '^    [a-z]' README.md | cut -d: -f1 || true)
[ "$lines" -le 130 ] || { echo "README.md: $lines lines; at most 130"; status=1; }
[ "${first:-999}" -le 12 ] || { echo "README.md: the first command is on line ${first:-none}; it is to be by line 12"; status=1; }

for picture in run parts; do
  cmp -s <(scripts/draw_pictures "$picture") "docs/pictures/$picture.svg" ||
    { echo "docs/pictures/$picture.svg is not what scripts/draw_pictures prints: run it"; status=1; }
done
exit $status
