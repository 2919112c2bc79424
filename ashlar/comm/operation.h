// One operation of a group, as the queue keeps it until its turn.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ashlar/tensor/tensor.h"

namespace ashlar::comm {

enum class Op : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSendReceive,
  kBarrier
};
inline constexpr int kNumOps = 8;
std::string_view name_of(Op op);  // "all_reduce"

// A tensor that goes to a rank of the group or comes from it.
struct Transfer {
  int rank = 0;
  Tensor data;
};

class Group;
struct TrafficRow;

struct Operation {
  Group* group = nullptr;
  TrafficRow* row = nullptr;  // also holds the label; stays where it is
  Op op = Op::kBarrier;
  Tensor in, out;
  int64_t count = 0;  // elements that all ranks agree on; 0 where they need not
  int root = 0;
  int64_t sequence = 0;                              // collectives of the group before it
  std::vector<int64_t> send_counts, receive_counts;  // empty: even
  std::vector<Transfer> sends, receives;
};

}  // namespace ashlar::comm
