// The right to train into a checkpoint root, which one process has at a time.
//
// .lease/trainer.json names the process (boot, pid namespace, pid, start time) and its host.  A
// thread of the Lease rewrites it every refresh_s with the number of the beat in it, whatever else
// the holder does.  If the holder is dead, or its machine has restarted, its lease is taken over at
// once.  A holder that cannot be judged from here, on another host or in another container, is
// watched: its lease is taken over after six intervals without a change, and left to it at the
// first change.  A holder that a launch on several machines has replaced (epoch and attempt) counts
// as dead, wherever it is.  Clocks and times of files are never compared.  If several processes
// start at once, exactly one of them gets the root, on any file system whose rename is atomic.
//
// Taking a lease over closes the fence of the earlier holder (fence.h): if that process lives after
// all, it can change nothing in the root any more.
//
// Errors   kConfig if another process holds the root, or is about to: names it, says what to do.
//          kPreempted if a signal asks to stop (core/signals.h) while the lease is watched.
// Threads  any, but for construction and destruction.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ashlar/checkpoint/root/fence.h"
#include "ashlar/checkpoint/root/lease_holder.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

struct LeaseOptions {
  double refresh_s = 10;
  // Tests play other hosts.  holder: the process that takes the lease; nullopt: this one.  sleep:
  // passes the time while a lease is watched; null: sleeps until a signal asks to stop.  now: the
  // seconds by which leases stay unchanged; null: the clock.
  std::optional<LeaseHolder> holder = std::nullopt;
  std::function<void(double seconds)> sleep = nullptr;
  std::function<double()> now = nullptr;
};

// The holder of the root; nullopt: there is none, or the text is torn.
std::optional<LeaseHolder> lease_of(FileSystem& files, const std::string& root);

class Lease {
 public:
  // The root exists.  Returns when this process holds it, after about a minute at most.
  Lease(FileSystem& files, const std::string& root, Log& log, LeaseOptions options = {});
  ~Lease();  // gives the root back; failures are logged
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // The previous holder ended without giving the root back: it was killed.
  bool taken_over() const { return taken_over_; }
  Fence& fence() { return *fence_; }
  const LeaseHolder& holder() const { return me_; }
  // kConfig if another process has taken the root over, because this one was silent too long, or if
  // the directories that make this process its holder were removed or moved.
  void check();
  void refresh();  // checks first; the thread calls it every refresh_s

 private:
  std::string text() const { return lease_text(me_, beat_); }
  bool is_mine(std::string_view text, const std::string& path) const;
  std::string missing() const;
  bool claim(const std::string& path);
  bool give_name(const std::string& aside, const std::string& path);
  void acquire();
  void take(const std::string& path);
  void replace_dead(const std::string& found, const std::string& successor,
                    const std::string& path);
  Life life(const LeaseHolder& holder) const;
  bool is_dead(const std::string& path, const std::string& found);
  bool stays_silent(const std::string& path, const std::string& found, const LeaseHolder& holder);
  void collect();
  void refresh_loop();
  void give_back();

  FileSystem& files_;
  std::string root_, path_;
  Log& log_;
  LeaseOptions options_;
  LeaseHolder me_;
  std::atomic<int64_t> beat_ = 0;
  std::atomic<double> renewed_s_ = 0;  // when the last beat was written
  bool taken_over_ = false;
  std::optional<Fence> fence_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // under mutex_
  std::thread refresher_;
};

}  // namespace ashlar::checkpoint
