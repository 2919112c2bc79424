// How it works.  This file is the caller's side; save_threads.cpp is that of the two threads.
//
//   constructor      lease (leader), remains of killed processes, newest good step; then threads
//   save()           make_job(): plan, room on the disk, arena if there is none yet.  Then the Job
//                    waits for one of kMaxJobs places and is queued
//   before_update()  waits until no job is left to copy: the tensors may change from then on
//   wait()           waits until no job is left at all
//
// A save can end in two ways without a step: refuse()d in save(), before its job is queued, or
// failed on the writer thread, which finish()es every job, failed or not.  last_step_ is the newest
// step that is committed or queued; it goes back when a queued one fails, so that the same step may
// be tried again.  mutex_ guards what the header says, with one condition variable for all waits.
#include "ashlar/checkpoint/checkpointer.h"

#include <unistd.h>

#include <algorithm>

#include "ashlar/checkpoint/raise.h"
#include "ashlar/checkpoint/retention.h"
#include "ashlar/core/text.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kReserveBytes = int64_t(16) << 20;
constexpr size_t kMaxJobs = 2;  // as many snapshots as the arena is made for

int64_t quarter_of_memory() {
  return int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE)) / 4;
}

// Creates the root first: the lease lies in it.
std::string prepared(FileSystem& files, std::string root) {
  make_durable_directories(files, root);
  return root;
}

}  // namespace

Checkpointer::Checkpointer(FileSystem& files, std::string root, CheckpointOptions options, Log& log)
    : files_(files),
      root_(prepared(files, std::move(root))),
      options_(std::move(options)),
      log_(log) {
  ASHLAR_ASSERT(0 <= options_.writer && options_.writer < options_.num_writers);
  ASHLAR_ASSERT(leads() || !options_.run_id.empty());
  ASHLAR_REQUIRE(options_.keep >= 1, kConfig, "checkpoint.keep is {}; expected at least 1",
                 options_.keep);
  if (leads()) {
    lease_.emplace(files_, root_, log_);
    collect_stale(files_, root_, log_);
    // Checks what loading the step does not read; after a kill all of it, which may have been cut
    // short in ways that sizes do not show.
    recover(lease_->taken_over() ? VerifyLevel::kDeep : VerifyLevel::kFiles);
  }
  if (options_.run_id.empty()) options_.run_id = newest_ ? newest_->run_id : to_text(random_id());
  // From here on the writer thread refreshes the lease.
  writer_ = start_thread("that writes checkpoints", [this] { write_loop(); });
  try {
    copier_ = start_thread("that copies checkpoints", [this] { copy_loop(); });
  } catch (const Error&) {
    stop();
    throw;
  }
}

Checkpointer::~Checkpointer() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty(); });
    for (const SaveFailure& failure : failures_) log_.warn("{}", failure.error.what());
  }
  stop();
  remove_abandoned();
}

void Checkpointer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (copier_.joinable()) copier_.join();
  writer_.join();
}

std::optional<StepRef> Checkpointer::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

StepReader Checkpointer::open_newest() const {
  const std::optional<StepRef> ref = newest();
  ASHLAR_ASSERT(ref);
  return StepReader(files_, ref->directory);
}

void Checkpointer::reject_newest(const std::string& reason) {
  ASHLAR_ASSERT(newest() && idle());
  const StepRef bad = *newest();
  log_.warn("{} is not usable: {}", bad.directory, reason);
  record_bad(files_, root_, bad, reason);
  recover(VerifyLevel::kDeep);  // one step was worse than it looked: trust no other by its looks
}

std::shared_ptr<Checkpointer::Job> Checkpointer::make_job(const SaveRequest& request,
                                                          const Id& attempt) {
  check_step(request.step);
  auto job = std::make_shared<Job>();
  job->plan =
      make_save_plan(request, options_.run_id, attempt, options_.writer + 1, options_.num_writers);
  job->plan.manifest.writer_version = options_.writer_version;
  job->stats.step = request.step;
  job->stats.bytes = job->plan.bytes;
  job->before_commit = request.before_commit;
  check_room(job->plan);
  take_arena(job->plan);
  return job;
}

// Ends a save that did not begin.  The other writers do not know yet and may be writing: the leader
// notes their directory for remove_abandoned(), a follower tells the leader by part-W.error.
void Checkpointer::refuse(const SaveRequest& request, const Error& error) {
  if (leads()) {
    const std::lock_guard lock(mutex_);
    abandoned_.push_back(join(root_, tmp_name(request.step, to_text(request.attempt))));
    return;
  }
  SavePlan nothing;
  nothing.step = request.step;
  nothing.attempt = request.attempt;
  nothing.writer = options_.writer + 1;
  StepWriter(files_, root_, nothing, options_.retry_delay_s, log_).report_failure(error.what());
}

void Checkpointer::save(const SaveRequest& request) {
  const Clock::time_point start = Clock::now();
  const bool chosen = request.attempt != Id{};
  ASHLAR_ASSERT(chosen || options_.num_writers == 1);
  std::shared_ptr<Job> job;
  try {
    job = make_job(request, chosen ? request.attempt : random_id());
  } catch (const Error& error) {
    if (options_.num_writers > 1) refuse(request, error);
    if (leads() || error.kind() != ErrorKind::kStorage) throw;
    log_.warn("{}", error.what());  // the leader reports it
    return;
  }
  job->start = start;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.size() < kMaxJobs; });
    last_step_ = request.step;
    jobs_.push_back(job);
    to_copy_.push_back(job);
    job->stats.blocked_s += seconds_since(start);
  }
  changed_.notify_all();
  if (!options_.async) wait();
}

void Checkpointer::before_update() {
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(mutex_);
  if (to_copy_.empty()) return;
  const std::shared_ptr<Job> job = to_copy_.back();  // the last to be copied: the wait is its
  changed_.wait(lock, [&] { return to_copy_.empty(); });
  job->stats.blocked_s += seconds_since(start);
}

void Checkpointer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty(); });
}

void Checkpointer::wait() {
  drain();
  const std::lock_guard lock(mutex_);
  if (failures_.empty()) return;
  const Error oldest = std::move(failures_.front().error);
  failures_.erase(failures_.begin());
  throw oldest;
}

std::vector<SaveStats> Checkpointer::take_stats() {
  const std::lock_guard lock(mutex_);
  std::vector<SaveStats> stats;
  for (const auto& job : committed_) stats.push_back(job->stats);
  committed_.clear();
  return stats;
}

std::vector<SaveFailure> Checkpointer::take_failures() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failures_, {});
}

int Checkpointer::consecutive_failures() const {
  const std::lock_guard lock(mutex_);
  return consecutive_failures_;
}

bool Checkpointer::idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

void Checkpointer::recover(VerifyLevel level) {
  Recovery recovery = find_newest(files_, root_, level, Who::kHolder, log_);
  for (const RejectedStep& rejected : recovery.rejected) {
    log_.warn("setting {} aside under {}/{}", rejected.ref.directory, root_, kBadDirectory);
    quarantine(files_, root_, rejected.ref);
  }
  const std::lock_guard lock(mutex_);
  newest_ = recovery.newest;
  last_step_ = newest_ ? newest_->step : -1;
}

void Checkpointer::check_step(int64_t step) const {
  ASHLAR_ASSERT(step >= 0 && step <= kMaxStep);
  if (!leads()) return;  // the leader's verdict holds for all
  const std::lock_guard lock(mutex_);
  ASHLAR_REQUIRE(step > last_step_, kConfig,
                 "step {} cannot be saved: {} already holds step {}; continue from it or choose "
                 "another directory",
                 step, root_, last_step_);
}

int64_t Checkpointer::free_bytes(int64_t step) const {
  try {
    return files_.free_bytes(root_);
  } catch (const Error& error) {
    raise(error.kind(), "step {} is not saved: asking for free space: {}", step, error.what());
  }
}

void Checkpointer::check_room(const SavePlan& plan) {
  try {
    const int64_t needed = plan.bytes_to_expect + plan.bytes_to_expect / 20 + kReserveBytes;
    const int64_t free = free_bytes(plan.step);
    ASHLAR_REQUIRE(free >= needed, kStorage,
                   "step {} is not saved: it needs {} but {} has {} free; make room or lower "
                   "checkpoint.keep",
                   plan.step, format_bytes(needed), root_, format_bytes(free));
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    ++consecutive_failures_;
    throw;
  }
}

void Checkpointer::take_arena(const SavePlan& plan) {
  if (arena_) return;
  int64_t chunks = 0;
  for (const FilePlan& file : plan.files)
    chunks += std::max<int64_t>(1, num_chunks(file.file.size_bytes));  // an empty file passes too
  const int64_t limit = options_.max_arena_bytes > 0 ? options_.max_arena_bytes
                                                     : quarter_of_memory() / options_.local_writers;
  arena_ = std::make_unique<ChunkArena>(
      std::clamp<int64_t>(2 * chunks, 2, std::max<int64_t>(2, limit / kChunkBytes)));
}

}  // namespace ashlar::checkpoint
