// Channels between neighbours of a ring, as bodies of a rank for every engine.
#pragma once

#include <memory>

#include "ashlar/comm/channel.h"
#include "tests/comm/checks.h"

namespace ashlar::comm::testing_support {

// Channels of a pipeline stage: activations go up the ring, gradients down.
struct Ring {
  explicit Ring(const Group& world)
      : next((world.rank() + 1) % world.size()),
        previous((world.rank() + world.size() - 1) % world.size()),
        to_next(world.channel(world.rank(), next, "activations")),
        from_previous(world.channel(previous, world.rank(), "activations")),
        to_previous(world.channel(world.rank(), previous, "gradients")),
        from_next(world.channel(next, world.rank(), "gradients")) {}
  const int next, previous;
  std::unique_ptr<Channel> to_next, from_previous, to_previous, from_next;
};

// All ranks send up and down before they receive, far more than a channel holds, and lengths differ
// from message to message.  Waited for last first.
inline void check_channels(Group& world) {
  if (world.size() == 1) return;
  Ring ring(world);
  constexpr int kMessages = 3 * int(kMaxQueued);
  constexpr int kAhead = 5;
  const auto length = [](int k) { return k % 4 * 700; };
  const auto data = [&](uint64_t seed, int rank, int k) {
    return data_of<int32_t>(seed + uint64_t(k), rank, length(k));
  };
  std::vector<std::vector<int32_t>> up, down, from_up(kMessages), from_down(kMessages);
  std::vector<Work> works;
  for (int k = 0; k < kMessages; ++k) {
    up.push_back(data(1000, world.rank(), k));
    down.push_back(data(2000, world.rank(), k));
    from_up[size_t(k)].resize(size_t(length(k)));
    from_down[size_t(k)].resize(size_t(length(k)));
  }
  for (int k = 0; k < kMessages + kAhead; ++k) {
    if (k < kMessages) {
      works.push_back(ring.to_next->send(tensor_of(up[size_t(k)]), "up"));
      works.push_back(ring.to_previous->send(tensor_of(down[size_t(k)]), "down"));
    }
    if (k < kAhead) continue;
    const auto at = size_t(k - kAhead);
    works.push_back(ring.from_next->receive(tensor_of(from_down[at]), "down"));
    works.push_back(ring.from_previous->receive(tensor_of(from_up[at]), "up"));
  }
  while (!works.empty()) {
    works.back().wait();
    works.pop_back();
  }
  for (int k = 0; k < kMessages; ++k) {
    require(from_up[size_t(k)] == data(1000, ring.previous, k), "what came up the ring");
    require(from_down[size_t(k)] == data(2000, ring.next, k), "what came down the ring");
  }
}

// Messages pass while the world's lane waits for a rank that comes last.
inline void check_channels_do_not_wait(Group& world) {
  if (world.size() == 1) return;
  Ring ring(world);
  std::vector<float> sum{1}, sent{float(world.rank())}, got{-1};
  Work waits;
  const auto reduce = [&] { return world.all_reduce(tensor_of(sum), tensor_of(sum), "sum"); };
  if (world.rank() > 0) waits = reduce();
  Work sends = ring.to_next->send(tensor_of(sent), "passes");
  ring.from_previous->receive(tensor_of(got), "passes").wait();
  sends.wait();
  require(got[0] == float(ring.previous), "what passed the sum");
  if (world.rank() == 0) {
    require(sum[0] == 1, "a sum that cannot have ended");
    waits = reduce();
  }
  waits.wait();
  require(sum[0] == float(world.size()), "the sum");
}

}  // namespace ashlar::comm::testing_support
