// A first-in-first-out queue of tensors from one rank of a group to another: the k-th send meets
// the k-th receive.  A channel waits for no lane (group.h) and no other channel, so the stages of a
// pipeline cannot deadlock by sending while their neighbours send to them.
//
// A channel is a group of its two ranks on its own lane, which takes no staging memory and whose
// thread sleeps while nothing is queued.  Its operations are send_receive in the traffic and in the
// trace of the rank.  The header of each holds its number, so an error about label, type or length
// names the first message that differs.
//
// Order    each end calls send or receive as often as the other calls receive or send.  Ranks may
//          create their channels in different orders.
// Overlap  as group.h: the tensor must stay until the Work is done.  kMaxQueued operations
//          (executor.h) may be in flight; the next call waits for room.
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
  // Called by Group::channel.  The lane's name is the channel's name, its direction, and whether
  // `from` is even: the same on both ends, and different for the channels that a rank of a ring
  // has.
  Channel(World& world, std::string_view name, int from, int to, std::span<const int> world_ranks);
  ~Channel();
  Channel(const Channel&) = delete;

  Work send(const Tensor& data, std::string_view label);     // on rank `from`
  Work receive(const Tensor& data, std::string_view label);  // on rank `to`
  Group& group() { return group_; }                          // of its two ranks, named as its lane
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
