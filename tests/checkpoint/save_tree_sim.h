// SaveTrees of any number of ranks on a network that exists in this process alone, with a clock of
// its own.  Messages take some time, and may be lost, doubled or overtaken, all by a seed.
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <set>

#include "ashlar/checkpoint/writers/save_tree.h"
#include "tests/checkpoint/random_boxes.h"

namespace ashlar::checkpoint {

struct Weather {
  int lost_percent = 0, doubled_percent = 0, late_percent = 0;
};

class Simulation {
 public:
  Simulation(std::vector<int> nodes, uint64_t seed, Weather weather = {}, int fan_out = 16)
      : tree_(std::make_shared<control::Tree>(control::make_tree(nodes, fan_out))),
        draw_(seed, "weather"),
        weather_(weather),
        dead_(nodes.size(), false) {
    for (int rank = 0; rank < size(); ++rank) {
      ranks_.push_back(
          std::make_unique<SaveTree>(tree_, rank, "n" + std::to_string(nodes[size_t(rank)])));
      push({1e-3 * double(rank % 1000), next_++, rank, kTick, 0, {}});
    }
  }
  int size() const { return tree_->size(); }
  const control::Tree& tree() const { return *tree_; }
  SaveTree& operator[](int rank) { return *ranks_[size_t(rank)]; }
  double now() const { return now_; }
  bool is_dead(int rank) const { return dead_[size_t(rank)]; }
  int64_t messages() const { return messages_; }
  int64_t bytes() const { return bytes_; }
  int64_t bytes_to_leader() const { return bytes_to_leader_; }
  // Around what the leader does with a message or a tick.
  std::function<void(const std::function<void()>&)> around_leader =
      [](const std::function<void()>& body) { body(); };

  // Sends what the rank has to say.  After every use of it.
  void pump(int rank) {
    for (SaveTree::Outgoing& out : ranks_[size_t(rank)]->take_outgoing()) {
      if (dead_[size_t(rank)]) continue;
      ++messages_;
      bytes_ += int64_t(out.body.size());
      if (out.to == 0) bytes_to_leader_ += int64_t(out.body.size());
      if (draw_.below(100) < weather_.lost_percent) continue;
      const int copies = 1 + (draw_.below(100) < weather_.doubled_percent);
      for (int copy = 0; copy < copies; ++copy) {
        double delay = 1e-4 + 1e-6 * double(draw_.below(1000));
        if (draw_.below(100) < weather_.late_percent) delay += 0.01 * double(draw_.below(400));
        push({now_ + delay, next_++, out.to, rank, out.kind, out.body});
      }
    }
  }
  // From now on it neither hears nor speaks; its neighbours lose their links 30 s later.
  void kill(int rank) {
    dead_[size_t(rank)] = true;
    std::vector<int> neighbours = tree_->children[size_t(rank)];
    if (tree_->parent[size_t(rank)] >= 0) neighbours.push_back(tree_->parent[size_t(rank)]);
    for (const int neighbour : neighbours)
      push({now_ + 30, next_++, neighbour, kLoss, uint16_t(0), {std::byte(0)}, rank});
  }
  // False if the time is over before `done`, which is asked after every event.
  bool run(
      double seconds, const std::function<bool()>& done = [] { return false; }) {
    const double end = now_ + seconds;
    while (!events_.empty() && events_.top().at <= end) {
      if (done()) return true;
      const Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      now_ = event.at;
      if (event.from == kTick) push({now_ + 1, next_++, event.to, kTick, 0, {}});
      if (dead_[size_t(event.to)]) continue;
      if (event.to == 0)
        around_leader([&] { deliver(event); });
      else
        deliver(event);
      pump(event.to);
    }
    now_ = end;
    return done();
  }

 private:
  static constexpr int kTick = -1, kLoss = -2;
  struct Event {
    double at;
    uint64_t order;
    int to, from;
    uint16_t kind;
    std::vector<std::byte> body;
    int lost = -1;
    bool operator<(const Event& other) const {  // the queue's top is the first
      return std::tie(other.at, other.order) < std::tie(at, order);
    }
  };
  void push(Event event) { events_.push(std::move(event)); }
  void deliver(const Event& event) {
    SaveTree& rank = *ranks_[size_t(event.to)];
    if (event.from == kTick)
      rank.tick(now_);
    else if (event.from == kLoss)
      rank.lost(event.lost, "no sign of life for 30 s");
    else
      rank.received(event.from, event.kind, event.body, now_);
  }

  std::shared_ptr<const control::Tree> tree_;
  Draw draw_;
  Weather weather_;
  std::vector<std::unique_ptr<SaveTree>> ranks_;
  std::vector<bool> dead_;
  std::priority_queue<Event> events_;
  uint64_t next_ = 0;
  double now_ = 0;
  int64_t messages_ = 0, bytes_ = 0, bytes_to_leader_ = 0;
};

inline std::vector<int> nodes_of_eight(int ranks) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / 8);
  return nodes;
}

}  // namespace ashlar::checkpoint
