#!/usr/bin/env bash
# Fails if code outside of ashlar/kernels moves or sets memory itself: tensors are copied, added and filled by
# ashlar/kernels/copy.h, which a dry run counts. Memory of the host (lists, strings, bytes of files) may be moved where
# `allowed` says so: path, word, reason.
set -euo pipefail
modules='nn parallel train eval optim bench'
words='memcpy|memmove|memset|copy_convert|fill_zero|std::(ranges::)?(copy|copy_n|copy_backward|move_backward|fill|fill_n)'
allowed='
ashlar/bench/checkpoint_baseline.cpp memcpy    bytes of a file that was read, into a state
ashlar/bench/checkpoint_baseline.cpp memset    the bytes that raw writes write
ashlar/train/saves.cpp            std::copy_n the name of a run
ashlar/train/tensorboard.cpp      memcpy      numbers, into the bytes of a file
'
status=0 used=' '
while IFS=: read -r path number code; do
  code=${code%%//*}
  while read -r word; do
    if grep -qE "^$path +$word " <<<"$allowed"; then
      used+="$path,$word "
    else
      echo "$path:$number: $word outside of kernels: use ashlar/kernels/copy.h"
      status=1
    fi
  done < <(grep -oE "\b($words)\b" <<<"$code" || true)
done < <(cd ashlar && grep -nE "\b($words)\b" -r $modules --include='*.h' --include='*.cpp' | sed 's|^|ashlar/|')
while read -r path word reason; do
  [ -z "$path" ] || [[ $used == *" $path,$word "* ]] || { echo "$0: $path has no $word; take it off the list"; status=1; }
done <<<"$allowed"
exit $status
