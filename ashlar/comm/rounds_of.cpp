#include "ashlar/comm/rounds_of.h"

#include <algorithm>

namespace ashlar::comm {

int64_t slice_bytes(int num_ranks, int64_t staging_bytes) {
  constexpr int64_t kCacheLine = 64;
  return staging_bytes / num_ranks / kCacheLine * kCacheLine;
}

int64_t num_slices(int64_t longest_bytes, int num_ranks, int64_t staging_bytes) {
  const int64_t slice = slice_bytes(num_ranks, staging_bytes);
  if (slice == 0) return 1;
  return std::max<int64_t>(1, (longest_bytes + slice - 1) / slice);
}

int64_t rounds_of(Op op, int64_t longest_bytes, int num_ranks, int64_t staging_bytes) {
  switch (op) {
    case Op::kAllReduce:
      return num_slices(longest_bytes, num_ranks, staging_bytes) + 1;
    case Op::kReduceScatter:
      return num_slices(longest_bytes, num_ranks, staging_bytes);
    case Op::kReduce:
      return 2 * num_slices(longest_bytes, num_ranks, staging_bytes);
    case Op::kBroadcast:
      return num_ranks == 2 ? 1 : 2;
    case Op::kAllGather:
    case Op::kAllToAll:
    case Op::kSendReceive:
    case Op::kBarrier:
      break;
  }
  return 1;
}

int64_t longest_chunk_bytes(int64_t numel, int num_ranks, DType dtype) {
  return (numel + num_ranks - 1) / num_ranks * size_of(dtype);
}

}  // namespace ashlar::comm
