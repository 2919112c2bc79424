#!/usr/bin/env bash
# Fails if code outside of ashlar/kernels moves or sets memory itself: tensors are copied, added and filled by
# ashlar/kernels/copy.h, which a dry run counts. Memory of the host (lists, strings, bytes of files) may be moved where
# `allowed` says so: path, word, reason. The modules of a step do not read elements of tensors either: the host gets
# them by download, so that a step waits only where it says so.
set -euo pipefail
modules='nn parallel train eval optim bench'
step_modules='nn parallel optim'
words='memcpy|memmove|memset|copy_convert|fill_zero|std::(ranges::)?(copy|copy_n|copy_backward|move_backward|fill|fill_n)'
allowed='
ashlar/bench/checkpoint_baseline.cpp memcpy    bytes of a file that was read, into a state
ashlar/bench/checkpoint_baseline.cpp memset    the bytes that raw writes write
ashlar/bench/onednn_peer.cpp std::fill_n       memory of the peer library, which gives no tensors
ashlar/train/saves.cpp            std::copy_n the name of a run
ashlar/train/records/tensorboard.cpp      memcpy      numbers, into the bytes of a file
'
status=0 used=' '
# reject MODULES PATTERN ADVICE: names every match in the code of the modules that is not on the list.
reject() {
  while IFS=: read -r path number code; do
    code=${code%%//*}
    while read -r word; do
      if grep -qF "$path $word " < <(tr -s ' ' <<<"$allowed"); then
        used+="$path,$word "
      else
        echo "$path:$number: $word outside of kernels: $3"
        status=1
      fi
    done < <(grep -oE "$2" <<<"$code" || true)
  done < <(cd ashlar && grep -nE "$2" -r $1 --include='*.h' --include='*.cpp' | sed 's|^|ashlar/|')
}
reject "$modules" "\b($words)\b" 'use ashlar/kernels/copy.h'
reject "$step_modules" '\.(as|span)<' 'let a kernel do it, or download it where a step ends'
while read -r path word reason; do
  [ -z "$path" ] || [[ $used == *" $path,$word "* ]] || { echo "$0: $path has no $word; take it off the list"; status=1; }
done <<<"$allowed"
exit $status
