// One operation of a group, as the queue keeps it until it runs.  Its lists are views, so that
// queueing it allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

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
Op op_of(std::string_view name);  // the op of one of these names

// A tensor that is sent to a rank of the group, or received from it.
struct Transfer {
  int rank = 0;
  Tensor data;
};

class Group;
struct TrafficRow;

struct Operation {
  Group* group = nullptr;
  TrafficRow* row = nullptr;  // also holds the label; its address is stable
  Op op = Op::kBarrier;
  Tensor in = {}, out = {};
  int64_t count = 0;  // elements, equal on all ranks; 0 if they may differ
  int root = 0;
  int64_t sequence = 0;  // collectives of the group before it
  std::span<const int64_t> send_counts = {}, receive_counts = {};  // empty: even; or one a rank
  std::span<const Transfer> sends = {}, receives = {};
  int64_t ticket = 0;   // from the executor
  bool traced = false;  // its post is in the rank's trace
  int64_t shown = -1;   // its entry in the rank's pulse
};
static_assert(std::is_trivially_copyable_v<Operation>);

}  // namespace ashlar::comm
