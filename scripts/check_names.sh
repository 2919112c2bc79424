#!/usr/bin/env bash
# Fails on functions of more than 60 lines, on types of one name in the headers of two modules (kernels/cpu keeps its own
# apart), and on comments that name what is nowhere in the code: a function(), a name_with_underscores, a CamelCase type
# or a kConstant. Long functions are listed below with the reason; one that is not long any more fails too. Needs
# universal-ctags.
set -euo pipefail
export LC_ALL=C
command -v ctags >/dev/null || { echo "$0: ctags is not installed: run scripts/setup"; exit 1; }

# path:function   why it is not cut
long_functions='
ashlar/cli/bench.cpp:add_checkpoint               flags of one subcommand, one statement each
ashlar/cli/data.cpp:add_data                      flags of one subcommand, one statement each
ashlar/nn/linear_attention_weights.cpp:list       a table of tensors
ashlar/nn/cca_attention.cpp:project_backward      one chain of products, whose temporaries live through it
ashlar/spec/model_rows.cpp:model_choice_rows      a table of keys
ashlar/spec/model_rows.cpp:model_size_rows        a table of keys
'
# Names of other people's programs, papers and formats, and of subscripts in formulas.
foreign_names='
AutoTokenizer DeepSeek DeepSeekMoE DeepSpeed DeltaNet MegaBlocks PipeDream PyTorch RetNet
_tile_loadconfig btl_tcp_if_include c_end padding_idx wall_time file_version SessionLog normalizer_spec
t_muted t_overlapped t_waiting kat_vectors TinyLlama modeling_rope_utils huggingface_hub load_balancing_loss_func
opt_state BabelStream ThreadSanitizer
apply_chat_template enable_thinking trim_blocks lstrip_blocks ImmutableSandboxedEnvironment
'
status=0
tags=$(mktemp)
trap 'rm -f "$tags"' EXIT
ctags -f "$tags" --languages=C++ --langmap=C++:.cpp.h.cu --kinds-C++=fsgct --fields=+neK -R ashlar

awk -F'\t' -v listed="$long_functions" '
  BEGIN { n = split(listed, lines, "\n"); for (i = 1; i <= n; ++i) if (split(lines[i], w, / +/) && w[1] != "") allowed[w[1]] = 1 }
  $4 == "function" {
    first = last = 0
    for (i = 5; i <= NF; ++i) { if ($i ~ /^line:/) first = substr($i, 6); if ($i ~ /^end:/) last = substr($i, 5) }
    name = $2 ":" $1
    if (last - first + 1 <= 60) next
    if (name in allowed) used[name] = 1
    else { printf "%s:%d: %s has %d lines; at most 60: cut it\n", $2, first, $1, last - first + 1; bad = 1 }
  }
  END {
    for (name in allowed) if (!(name in used)) { printf "%s is not long: take it off the list of check_names.sh\n", name; bad = 1 }
    exit bad
  }' "$tags" || status=1

awk -F'\t' '
  /^!/ || $2 !~ /\.h$/ || $4 == "function" { next }
  {
    scope = ""
    for (i = 5; i <= NF; ++i) if ($i ~ /^namespace:/) scope = substr($i, 11)
    if (scope !~ /^ashlar/ || scope ~ /__anon|kernels::cpu/) next
    split($2, part, "/")
    if (($1, part[2]) in seen) next
    seen[$1, part[2]] = 1
    where[$1] = where[$1] " " $2
    ++modules[$1]
  }
  END {
    for (name in modules)
      if (modules[name] > 1) { printf "%s is a type of several modules:%s\n", name, where[name]; bad = 1 }
    exit bad
  }' "$tags" || status=1

# Twice over all sources: first for what the code names, then for what comments name.
sources=$(find ashlar tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort)
others=$(find scripts recipes docs -type f | sed -E 's|.*/||; s|\.[a-z]+$||')
# shellcheck disable=SC2086
awk -v foreign="$foreign_names $others" '
  BEGIN { n = split(foreign, names, /[ \n]+/); for (i = 1; i <= n; ++i) known[names[i]] = 1 }
  function is_known(word,   one) {  # a member without its underscore, and several of something, too
    one = word
    sub(/s$/, "", one)
    return word in known || (word "_") in known || one in known
  }
  FNR == 1 {
    again = (FILENAME in seen)
    seen[FILENAME] = 1
    n = split(FILENAME, part, "/")
    sub(/\.[a-z]+$/, "", part[n])
    known[part[n]] = 1
  }
  {
    at = index($0, "//")
    text = again ? (at ? substr($0, at + 2) : "") : (at ? substr($0, 1, at - 1) : $0)
    while (match(text, /[A-Za-z_][A-Za-z0-9_]*(\(\))?/)) {
      word = substr(text, RSTART, RLENGTH)
      text = substr(text, RSTART + RLENGTH)
      call = sub(/\(\)$/, "", word)
      if (!again) known[word] = 1
      else if (!is_known(word) && (call || word ~ /^[a-z0-9_]+_[a-z0-9][a-z0-9][a-z0-9]+_?$/ || word ~ /^k?[A-Z][a-z]+[A-Z][a-z]/)) {
        printf "%s:%d: the comment names %s, which is nowhere in the code\n", FILENAME, FNR, word; bad = 1
      }
    }
  }
  END { exit bad }' $sources $sources || status=1
exit $status
