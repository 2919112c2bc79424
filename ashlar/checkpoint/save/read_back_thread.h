// The thread of a Checkpointer that works after a commit, with low priority.  The leader's reads
// the newest step back before it removes older ones; a follower's reads its share of that step.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/checkpoint/save/leadership.h"
#include "ashlar/checkpoint/writers/coordination.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {

// The work after a commit: the step was read back, and older ones were removed.
struct RetireStats {
  int64_t step = 0, bytes = 0;        // bytes that were read
  double verify_s = 0, remove_s = 0;  // reading, by all ranks together; removing, by the leader
  std::vector<RankTimes> ranks;       // by rank; without a channel the leader alone
};

struct ReadBackOptions {
  int64_t keep = 3, keep_every = 0;  // retention.h
  int64_t bytes_per_s = 0;           // most that this rank reads; 0: any
  int writer_rank = 0;
};

class ReadBackThread {
 public:
  // Called on this thread when a committed step does not read back.
  using OnDamage = std::function<void(int64_t step, const Error& error)>;
  // leadership: the leader's; null: a follower, whose coordination serves().
  ReadBackThread(FileSystem& files, std::string root, const ReadBackOptions& options,
                 Leadership* leadership, Coordination& coordination, Log& log, OnDamage on_damage);
  ~ReadBackThread();  // waits for what is being read
  ReadBackThread(const ReadBackThread&) = delete;
  ReadBackThread& operator=(const ReadBackThread&) = delete;

  // The leader: a step was committed, and older ones may be removed.  Further calls before that
  // begins have no effect.
  void retire_soon();
  // Waits until nothing is being read or removed, but not past the deadline; returns whether that
  // is so.  A follower is always idle.
  bool wait_until_idle(Clock::time_point deadline);
  std::vector<RetireStats> take_retired();  // steps that were read back whole since the last call

 private:
  void lead();
  void follow();
  void retire();
  ReadBackResult read_back(const StepRef& step);
  ReadBackResult read_alone(const StepRef& step);
  ReadBackResult read_share(const SaveTree::Task& task);

  FileSystem& files_;
  const std::string root_;
  const ReadBackOptions options_;
  Leadership* const leadership_;
  Coordination& coordination_;
  Log& log_;
  const OnDamage on_damage_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool to_retire_ = false, retiring_ = false, stop_ = false;
  std::vector<RetireStats> retired_;
  std::thread thread_;
};

}  // namespace ashlar::checkpoint
