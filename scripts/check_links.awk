# Prints every link of a Markdown file that leads to no file, directory or heading, and every name of a page (docs/NAME.md)
# in any file that does not exist; exit code 1 if there is one.  scripts/check_text.sh calls it:
#   awk -v list=LIST -f scripts/check_links.awk LIST FILES...      LIST: a file that names all files and directories
function directory(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }

function normal(path,   parts, kept, n, i, count) {  # a/./b/../c -> a/c
  n = split(path, parts, "/")
  for (i = 1; i <= n; i++) {
    if (parts[i] == "" || parts[i] == ".") continue
    if (parts[i] == ".." && count > 0 && kept[count] != "..") count--
    else kept[++count] = parts[i]
  }
  path = ""
  for (i = 1; i <= count; i++) path = path (i > 1 ? "/" : "") kept[i]
  return path
}

function anchor_of(title) {  # as GitHub makes it
  gsub(/\]\([^)]*\)/, "]", title)
  title = tolower(title)
  gsub(/[^a-z0-9 _\200-\377-]/, "", title)
  gsub(/ /, "-", title)
  return title
}

function note(target) {
  links++
  from[links] = FILENAME
  line[links] = FNR
  to[links] = target
}

FILENAME == list { exists[normal($0)] = 1; next }
FNR == 1 { fenced = 0; is_page = FILENAME ~ /\.md$/ }
{
  rest = $0
  while (match(rest, /docs\/[a-z0-9_\/-]*\.(md|svg)/)) {
    note("/" substr(rest, RSTART, RLENGTH))
    rest = substr(rest, RSTART + RLENGTH)
  }
}
!is_page { next }
/^ *```/ { fenced = !fenced; next }
fenced { next }
/^#+ / {
  title = $0
  sub(/^#+ +/, "", title)
  anchor = anchor_of(title)
  repeats = seen[FILENAME, anchor]++
  anchors[FILENAME "#" anchor (repeats ? "-" repeats : "")] = 1
}
{
  rest = $0
  while (match(rest, /\]\([^) ]*\)|(src|srcset|href)="[^"]*"/)) {
    target = substr(rest, RSTART, RLENGTH)
    rest = substr(rest, RSTART + RLENGTH)
    sub(/^(\]\(|[a-z]*=")/, "", target)
    note(substr(target, 1, length(target) - 1))
  }
}

END {
  for (i = 1; i <= links; i++) {
    if (to[i] ~ /^[a-z]+:/) continue
    split(to[i], parts, "#")
    if (parts[1] == "") path = from[i]
    else if (parts[1] ~ /^\//) path = normal(parts[1])
    else path = normal(directory(from[i]) "/" parts[1])
    if (!(path in exists)) { what = "there is no " path; bad = 1 }
    else if (parts[2] != "" && !((path "#" parts[2]) in anchors)) { what = path " has no heading #" parts[2]; bad = 1 }
    else continue
    if (!told[from[i], line[i], what]++) printf "%s:%d: %s\n", from[i], line[i], what
  }
  exit bad
}
