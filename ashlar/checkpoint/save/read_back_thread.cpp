// How it works.  The thread behind a Checkpointer that comes after a commit:
//
//   the leader    to_retire_ --> retire(): if old steps may go, the newest one is read back, is
//                                recorded as verified, and they are removed
//   a follower    waits for the leader's orders and reads its share
//
// With a channel the leader sends every rank the files of its partner (read_back.h), with the
// checksums that the writer counted, and reads its own share meanwhile; the verdict is good if all
// say so.  Without one, or for a step of an earlier run, it reads all files itself.  Commits that
// happen meanwhile ask for one more turn, for the newest step then.
#include <algorithm>
#include <chrono>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/checkpoint/save/retention.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {

void Checkpointer::read_loop() {
  constexpr double kWait_s = 0.1;
  lower_thread_priority();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (leads()) changed_.wait(lock, [&] { return stop_ || to_retire_; });
      if (stop_) return;
      if (leads()) {
        to_retire_ = false;
        retiring_ = true;
      }
    }
    if (!leads()) {
      options_.channel->serve(kWait_s,
                              [&](const SaveTree::Task& task) { return read_share(task); });
      continue;
    }
    retire();
    {
      const std::lock_guard lock(mutex_);
      retiring_ = false;
    }
    changed_.notify_all();
  }
}

void Checkpointer::retire() {
  std::optional<StepRef> read;
  RetireStats stats;
  Clock::time_point begin;
  try {
    retire_old_steps(
        lease_->fence(), *doors_, options_.keep, options_.keep_every,
        [&](const StepRef& step) {
          read = step;
          begin = Clock::now();
          ReadBackResult result = read_back(step);
          std::optional<std::string> damage = damage_of(result);
          stats = {step.step, result.bytes, seconds_since(begin), 0, std::move(result.ranks)};
          begin = Clock::now();
          return damage;
        },
        log_);
    if (stats.ranks.empty()) return;  // nothing was read, or not whole
    stats.remove_s = seconds_since(begin);
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(stats));
  } catch (const Error& error) {
    // The newest step did not read back and was set aside: it failed although it was committed.
    const std::vector<StepRef> steps = committed_steps(files_, root_);
    const std::lock_guard lock(mutex_);
    if (newest_ && read && newest_->step == read->step) {
      newest_.reset();
      if (!steps.empty() && steps.back().step < read->step) newest_ = steps.back();
      if (jobs_.empty()) last_step_ = newest_ ? newest_->step : -1;
    }
    fail(read ? read->step : -1, error);
  }
}

ReadBackResult Checkpointer::read_back(const StepRef& step) {
  std::vector<IndexFile> written;
  {
    const std::lock_guard lock(mutex_);
    if (newest_ && newest_->attempt == step.attempt) written = newest_files_;
  }
  const std::optional<Id> attempt = parse_id(step.attempt);
  if (written.empty() || !attempt || !linked()) return read_alone(step);
  const control::Tree& tree = options_.channel->tree();
  std::vector<std::vector<IndexFile>> of_writer(size_t(tree.size()));
  for (IndexFile& file : written) of_writer.at(file.writer - 1).push_back(std::move(file));
  const std::vector<int> partners = read_back_partners(tree);
  std::map<int, std::vector<std::byte>> tasks;
  for (int rank = 0; rank < tree.size(); ++rank)
    tasks[rank] = encode_files(*attempt, std::move(of_writer[size_t(partners[size_t(rank)])]));
  auto result =
      options_.channel->read_back(*attempt, step.step, std::move(tasks), options_.part_timeout_s,
                                  [&](const SaveTree::Task& task) { return read_share(task); });
  if (!result) return read_alone(step);  // the channel broke
  std::sort(result->ranks.begin(), result->ranks.end(),
            [](const RankTimes& a, const RankTimes& b) { return a.rank < b.rank; });
  return std::move(*result);
}

ReadBackResult Checkpointer::read_alone(const StepRef& step) {
  return read_back_alone(files_, step, options_.read_back_bytes_per_s, log_,
                         [&](int64_t) { return !given_up_; });
}

// Of a step that another rank has committed: this machine looks for it by its name.
ReadBackResult Checkpointer::read_share(const SaveTree::Task& task) {
  RateLimit limit(options_.read_back_bytes_per_s);
  int64_t total_bytes = 0;
  std::vector<IndexFile> what;
  try {
    what = decode_files(task.what);
  } catch (const Error& error) {
    return {1, 0, options_.writer, false, error.what()};
  }
  for (const IndexFile& file : what) total_bytes += file.size_bytes;
  options_.channel->status(task.attempt, Phase::kVerify, 0, total_bytes);
  ReadBackResult result = read_back_files(
      files_, join(root_, step_name(task.step)), what, options_.writer, limit, [&](int64_t bytes) {
        options_.channel->status(task.attempt, Phase::kVerify, bytes, total_bytes);
        return !given_up_;
      });
  result.ranks[0].host = options_.channel->host();
  return result;
}

}  // namespace ashlar::checkpoint
