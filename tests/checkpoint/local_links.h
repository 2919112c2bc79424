// Control links among threads of one process: every member has a thread that hands it what arrives,
// in order.  A cut link is lost on both sides.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "ashlar/control/links.h"
#include "ashlar/control/tree.h"

namespace ashlar::checkpoint {

class LocalNetwork {
 public:
  explicit LocalNetwork(std::shared_ptr<const control::Tree> tree) : tree_(std::move(tree)) {}

  std::unique_ptr<control::Links> join(int rank, control::LinkUser& user) {
    auto member = std::make_shared<Member>();
    const std::lock_guard lock(mutex_);
    members_[rank] = member;
    for (const int other : neighbours(rank)) {
      if (!members_.contains(other) || cut_.contains(link(rank, other))) continue;
      member->push([other](control::LinkUser& me) { me.linked(other); });
      members_[other]->push([rank](control::LinkUser& me) { me.linked(rank); });
    }
    return std::make_unique<Links>(*this, rank, user, std::move(member));
  }
  void cut(int a, int b) {
    const std::lock_guard lock(mutex_);
    cut_.insert(link(a, b));
    for (const auto& [rank, other] : {std::pair(a, b), std::pair(b, a)}) {
      const int lost = other;
      if (members_.contains(rank))
        members_[rank]->push([lost](control::LinkUser& me) { me.lost(lost, "it was cut"); });
    }
  }

 private:
  struct Member {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void(control::LinkUser&)>> calls;
    bool stop = false;
    void push(std::function<void(control::LinkUser&)> call) {
      {
        const std::lock_guard lock(mutex);
        calls.push_back(std::move(call));
      }
      changed.notify_all();
    }
    void run(control::LinkUser& user) {
      std::unique_lock lock(mutex);
      while (!stop) {
        changed.wait_for(lock, std::chrono::milliseconds(20),
                         [&] { return stop || !calls.empty(); });
        while (!calls.empty() && !stop) {
          const auto call = std::move(calls.front());
          calls.pop_front();
          lock.unlock();
          call(user);
          lock.lock();
        }
        lock.unlock();
        user.tick();
        lock.lock();
      }
    }
  };
  class Links : public control::Links {
   public:
    Links(LocalNetwork& network, int rank, control::LinkUser& user, std::shared_ptr<Member> member)
        : network_(network), rank_(rank), member_(std::move(member)) {
      thread_ = std::thread([this, &user] { member_->run(user); });
    }
    ~Links() override {
      network_.leave(rank_);
      {
        const std::lock_guard lock(member_->mutex);
        member_->stop = true;
      }
      member_->changed.notify_all();
      thread_.join();
    }
    void send(int rank, uint16_t kind, std::span<const std::byte> body) override {
      network_.send(rank_, rank, kind, {body.begin(), body.end()});
    }

   private:
    LocalNetwork& network_;
    int rank_;
    std::shared_ptr<Member> member_;
    std::thread thread_;
  };

  std::vector<int> neighbours(int rank) const {
    std::vector<int> all = tree_->children[size_t(rank)];
    if (rank > 0) all.push_back(tree_->parent[size_t(rank)]);
    return all;
  }
  static std::pair<int, int> link(int a, int b) { return std::minmax(a, b); }
  void send(int from, int to, uint16_t kind, std::vector<std::byte> body) {
    const std::lock_guard lock(mutex_);
    if (!members_.contains(to) || cut_.contains(link(from, to))) return;
    members_[to]->push([from, kind, body = std::move(body)](control::LinkUser& me) {
      me.received(from, kind, body);
    });
  }
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    members_.erase(rank);
    for (const int other : neighbours(rank))
      if (members_.contains(other))
        members_[other]->push([rank](control::LinkUser& me) { me.lost(rank, ""); });
  }

  std::shared_ptr<const control::Tree> tree_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Member>> members_;
  std::set<std::pair<int, int>> cut_;
};

}  // namespace ashlar::checkpoint
