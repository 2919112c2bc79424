// A first-in-first-out queue of tensors from one rank of its group to another: the k-th send meets
// the k-th receive.  It waits for nothing else, neither lanes (group.h) nor channels, so that the
// stages of a pipeline cannot lock up by sending while their neighbours send to them.
//
// A channel is a group of its two ranks on a lane of its own, which takes no staging memory: it has
// a thread, which sleeps while nothing is queued.  Its operations are send_receive in the traffic,
// and in the trace of the rank; the header of each has its number, so that a difference of label,
// type or length names the first message that differs.
//
// Order    each end calls send or receive as often as the other calls receive or send.  Who makes
//          channels need not agree with the others on the order in which.
// Overlap  as group.h: the tensor must stay until the Work is done.  kMaxQueued operations
//          (executor.h) may be under way; the next call waits for room.
// Errors   kComm, as group.h.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "ashlar/comm/executor.h"
#include "ashlar/comm/group.h"

namespace ashlar::comm {

class Channel {
 public:
  // By Group::channel.  The lane's name is the channel's, with the direction and whether `from` is
  // even: the same on both ends, and another for each of the channels that a rank of a ring has.
  Channel(World& world, std::string_view name, int from, int to, std::span<const int> world_ranks);
  ~Channel();
  Channel(const Channel&) = delete;

  Work send(const Tensor& data, std::string_view label);     // on rank `from`
  Work receive(const Tensor& data, std::string_view label);  // on rank `to`
  Group& group() { return group_; }  // of its two ranks: traffic, delay; it has the lane's name
  const Group& group() const { return group_; }

 private:
  const Transfer& keep(const Transfer& transfer);

  World& world_;
  const std::string lane_name_;
  std::array<Transfer, kMaxQueued + 1> transfers_;
  size_t num_kept_ = 0;
  Group group_;  // rank 0 sends, rank 1 receives
};

}  // namespace ashlar::comm
