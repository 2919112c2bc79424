// How it works.
//
//   the leader    retire_soon() --> retire(): if old steps may go, the newest one is read back, is
//                                   recorded as verified, and they are removed
//   a follower    waits for the leader's orders and reads its share
//
// With a channel the leader sends every rank the files of its partner (read_back.h), with the
// checksums that the writer computed, and reads its own share meanwhile; the step is good if all
// ranks report that.  Without a channel, or for a step of an earlier run, the leader reads all
// files itself.  Commits in the meantime lead to one more turn, for the newest step then.
#include "ashlar/checkpoint/save/read_back_thread.h"

#include <utility>

#include "ashlar/checkpoint/writers/read_back.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {

ReadBackThread::ReadBackThread(FileSystem& files, std::string root, const ReadBackOptions& options,
                               Leadership* leadership, Coordination& coordination, Log& log,
                               OnDamage on_damage)
    : files_(files),
      root_(std::move(root)),
      options_(options),
      leadership_(leadership),
      coordination_(coordination),
      log_(log),
      on_damage_(std::move(on_damage)) {
  thread_ = start_thread("that reads checkpoints back", [this] {
    lower_thread_priority();
    leadership_ ? lead() : follow();
  });
}

ReadBackThread::~ReadBackThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadBackThread::retire_soon() {
  {
    const std::lock_guard lock(mutex_);
    to_retire_ = true;
  }
  changed_.notify_all();
}

bool ReadBackThread::wait_until_idle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return !to_retire_ && !retiring_; });
}

std::vector<RetireStats> ReadBackThread::take_retired() {
  const std::lock_guard lock(mutex_);
  return std::exchange(retired_, {});
}

void ReadBackThread::lead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || to_retire_; });
    if (stop_) return;
    to_retire_ = false;
    retiring_ = true;
    lock.unlock();
    retire();
    lock.lock();
    retiring_ = false;
    changed_.notify_all();
  }
}

void ReadBackThread::follow() {
  constexpr double kWait_s = 0.1;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    coordination_.serve(kWait_s, [&](const SaveTree::Task& task) { return read_share(task); });
  }
}

void ReadBackThread::retire() {
  int64_t read = -1;
  RetireStats stats;
  Clock::time_point begin;
  try {
    leadership_->retire(options_.keep, options_.keep_every, [&](const StepRef& step) {
      read = step.step;
      begin = Clock::now();
      ReadBackResult result = read_back(step);
      std::optional<std::string> damage = damage_of(result);
      stats = {step.step, result.bytes, seconds_since(begin), 0, std::move(result.ranks)};
      begin = Clock::now();
      return damage;
    });
    if (stats.ranks.empty()) return;  // nothing was read, or not whole
    stats.remove_s = seconds_since(begin);
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(stats));
  } catch (const Error& error) {
    on_damage_(read, error);
  }
}

ReadBackResult ReadBackThread::read_back(const StepRef& step) {
  std::vector<IndexFile> written = leadership_->written_files(step);
  const std::optional<Id> attempt = parse_id(step.attempt);
  if (written.empty() || !attempt) return read_alone(step);
  auto result =
      coordination_.read_back(*attempt, step.step, std::move(written),
                              [&](const SaveTree::Task& task) { return read_share(task); });
  return result ? std::move(*result) : read_alone(step);
}

ReadBackResult ReadBackThread::read_alone(const StepRef& step) {
  return read_back_alone(files_, step, options_.bytes_per_s, log_,
                         [&](int64_t) { return !coordination_.given_up(); });
}

// Another rank committed the step: this one looks for it by its name.
ReadBackResult ReadBackThread::read_share(const SaveTree::Task& task) {
  RateLimit limit(options_.bytes_per_s);
  int64_t total_bytes = 0;
  std::vector<IndexFile> what;
  try {
    what = decode_files(task.what);
  } catch (const Error& error) {
    return {1, 0, options_.writer_rank, false, error.what()};
  }
  for (const IndexFile& file : what) total_bytes += file.size_bytes;
  coordination_.status(task.attempt, Phase::kVerify, 0, total_bytes);
  ReadBackResult result =
      read_back_files(files_, join(root_, step_name(task.step)), what, options_.writer_rank, limit,
                      [&](int64_t bytes) {
                        coordination_.status(task.attempt, Phase::kVerify, bytes, total_bytes);
                        return !coordination_.given_up();
                      });
  result.ranks[0].host = coordination_.host();
  return result;
}

}  // namespace ashlar::checkpoint
