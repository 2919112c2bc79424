#!/usr/bin/env bash
# Fails if code outside of ashlar/kernels moves or sets memory itself: tensors are copied, added and filled by
# ashlar/kernels/copy.h, which a dry run counts. Memory of the host (lists, strings, bytes of files) may be moved where
# `allowed` says so: path, word, reason. No code but kernels reads elements of tensors, except where `allowed` says that
# the host's memory has them: the host gets them by download, so that a step waits only where it says so.
set -euo pipefail
modules='nn parallel train eval optim bench'
readers='control comm sizing sim data nn optim checkpoint models parallel eval train plan bench cli'
words='memcpy|memmove|memset|copy_convert|fill_zero|std::(ranges::)?(copy|copy_n|copy_backward|move_backward|fill|fill_n)'
allowed='
ashlar/bench/checkpoint_baseline.cpp memcpy    bytes of a file that was read, into a state
ashlar/bench/checkpoint_baseline.cpp memset    the bytes that raw writes write
ashlar/bench/onednn_peer.cpp std::fill_n       memory of the peer library, which gives no tensors
ashlar/train/saves.cpp            std::copy_n the name of a run
ashlar/train/records/tensorboard.cpp      memcpy      numbers, into the bytes of a file
ashlar/models/hf/files.cpp        .as<        numbers of a file, before they are converted
ashlar/models/hf/write.cpp        .as<        numbers of a file, after they were rounded
ashlar/models/hf/write.cpp        .span<      the numbers that are rounded
ashlar/eval/generate.cpp          .span<      a row of logits that a token is sampled from
ashlar/bench/product_case.h       .as<        inputs of a measurement
ashlar/bench/linear_attention.cpp .as<        inputs of a measurement
ashlar/bench/machine/stream.cpp   .as<        memory of the host, which is measured
ashlar/bench/machine/collective_data.cpp  .as<  memory of the host, which ranks exchange
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
reject "$readers" '\.(as|span)<' 'let a kernel do it, or download it where a step ends'
while read -r path word reason; do
  [ -z "$path" ] || [[ $used == *" $path,$word "* ]] || { echo "$0: $path has no $word; take it off the list"; status=1; }
done <<<"$allowed"
exit $status
