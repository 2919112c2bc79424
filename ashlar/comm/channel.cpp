#include "ashlar/comm/channel.h"

#include <fmt/format.h>

#include "ashlar/comm/world.h"

namespace ashlar::comm {
namespace {

std::string lane_of(std::string_view name, int from, int to) {
  return fmt::format("{} {} {}", name, from < to ? "up" : "down", from % 2 == 0 ? "even" : "odd");
}

}  // namespace

Channel::Channel(World& world, std::string_view name, int from, int to,
                 std::span<const int> world_ranks)
    : world_(world),
      lane_name_(lane_of(name, from, to)),
      group_(world, fmt::format("{}>{} {}", from, to, name),
             {world_ranks[size_t(from)], world_ranks[size_t(to)]}, lane_name_,
             Group::Use::kChannel) {
  const bool is_only = world_.channels.insert(lane_name_).second;
  ASHLAR_ASSERT(is_only && "a rank has two channels of one name: they need different names");
}

Channel::~Channel() {
  world_.channels.erase(lane_name_);
}

Work Channel::send(const Tensor& data, std::string_view label) {
  ASHLAR_ASSERT(group_.rank() == 0);
  return group_.send_receive({&keep({1, data}), 1}, {}, label);
}

Work Channel::receive(const Tensor& data, std::string_view label) {
  ASHLAR_ASSERT(group_.rank() == 1);
  return group_.send_receive({}, {&keep({0, data}), 1}, label);
}

// Operations point at their transfers.  Before a transfer's slot is used again, the executor has
// accepted a later operation for which it needed room, and so has ended this one.
const Transfer& Channel::keep(const Transfer& transfer) {
  return transfers_[num_kept_++ % transfers_.size()] = transfer;
}

std::unique_ptr<Channel> Group::channel(int from, int to, std::string_view name) const {
  ASHLAR_ASSERT(from != to && (rank_ == from || rank_ == to));
  return std::make_unique<Channel>(world_, name, from, to, world_ranks_);
}

}  // namespace ashlar::comm
