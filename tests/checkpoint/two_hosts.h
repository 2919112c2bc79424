// Two hosts on one root inside one process: each has its own identity, its own view of the same
// files, and makes its calls when a scheduler lets it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "ashlar/checkpoint/root/lease_holder.h"
#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

// A process that no other one can judge.
inline LeaseHolder process_on(const std::string& host) {
  LeaseHolder holder;
  holder.host = host;
  holder.boot = "boot of " + host;
  holder.pid_namespace = "namespace of " + host;
  holder.pid = 7;
  holder.started = 1;
  return holder;
}

// Lets one of two hosts make the next call.  Host 0 runs alone until it has made `suspend_at`
// calls; then host 1 alone for `alone` calls; then both, one call at a time, in an order drawn from
// the seed.  A host that has ended holds up nobody.
class Turns {
 public:
  Turns(int64_t suspend_at, int64_t alone, uint64_t seed)
      : suspend_at_(suspend_at), alone_(alone), random_(seed) {}

  std::unique_ptr<FileSystem> files_of(int host, FileSystem& disk) {
    return faulty_files(disk, [this, host](int64_t, std::string_view, const std::string&) {
      await(host);
      return Fault::kNone;
    });
  }
  void end(int host) {
    const std::lock_guard lock(mutex_);
    ended_[host] = true;
    changed_.notify_all();
  }
  int64_t calls(int host) const { return calls_[host]; }

 private:
  void await(int host) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next() == host; });
    ++calls_[host];
    drawn_ = int(random_() % 2);
    changed_.notify_all();
  }
  int next() const {
    if (ended_[0] || ended_[1]) return ended_[0] ? 1 : 0;
    if (calls_[0] < suspend_at_) return 0;
    return calls_[1] < alone_ ? 1 : drawn_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const int64_t suspend_at_, alone_;
  std::mt19937_64 random_;
  int drawn_ = 0;
  int64_t calls_[2] = {0, 0};
  bool ended_[2] = {false, false};
};

}  // namespace ashlar::checkpoint
