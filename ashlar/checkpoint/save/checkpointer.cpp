// How it works.  This file is the caller's side; save_threads.cpp and read_back_thread.cpp are that
// of the threads.
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
#include "ashlar/checkpoint/save/checkpointer.h"

#include <algorithm>
#include <chrono>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/root/lost_root.h"
#include "ashlar/checkpoint/save/retention.h"
#include "ashlar/core/text.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {
namespace {

constexpr size_t kMaxJobs = 2;  // as many snapshots as the arena is made for

// A snapshot is the chunks of all files.
int64_t arena_chunks(const SavePlan& plan, const CheckpointOptions& options) {
  const int64_t most = snapshot_limit_bytes(options.arena_bytes, options.local_writers);
  return std::clamp<int64_t>(2 * plan.chunks, 2, std::max<int64_t>(2, most / kChunkBytes));
}

// Creates the root first: the lease lies in it.
std::string prepared(FileSystem& files, std::string root) {
  make_durable_directories(files, root);
  return root;
}

}  // namespace

int64_t room_to_save(int64_t step_bytes) {
  return step_bytes + step_bytes / 20 + (int64_t(16) << 20);
}

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
    lease_.emplace(files_, root_, log_, options_.lease);
    doors_.emplace(lease_->fence(), lease_->holder(), options_.lease.now);
    collect_stale(lease_->fence(), log_);
    doors_->open_all();
    // Checks what loading the step does not read.  What a killed holder left may have been cut
    // short in ways that sizes do not show.
    recover(VerifyLevel::kFiles);
    unchecked_ = lease_->taken_over() && newest_ && !is_verified(files_, root_, *newest_);
  }
  if (options_.run_id.empty()) options_.run_id = newest_ ? newest_->run_id : to_text(random_id());
  planner_.emplace(options_.run_id, options_.writer + 1, options_.num_writers);
  writer_ = start_thread("that writes checkpoints", [this] { write_loop(); });
  try {
    copier_ = start_thread("that copies checkpoints", [this] { copy_loop(); });
    if (leads() || options_.channel)
      reader_ = start_thread("that reads checkpoints back", [this] { read_loop(); });
  } catch (const Error&) {
    stop();
    throw;
  }
}

Checkpointer::~Checkpointer() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_quiet(); });
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
  if (reader_.joinable()) reader_.join();
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

std::optional<StepRef> Checkpointer::unchecked() const {
  const std::lock_guard lock(mutex_);
  return unchecked_ ? newest_ : std::nullopt;
}

void Checkpointer::accept_newest() {
  const std::optional<StepRef> good = unchecked();
  ASHLAR_ASSERT(good);
  record_verified(lease_->fence(), *good);
  const std::lock_guard lock(mutex_);
  unchecked_ = false;
}

void Checkpointer::reject_newest(const std::string& reason) {
  ASHLAR_ASSERT(newest() && idle());
  const StepRef bad = *newest();
  log_.warn("{} is not usable: {}", bad.directory, reason);
  record_bad(lease_->fence(), bad, reason);
  recover(VerifyLevel::kDeep);  // one step was worse than it looked: trust no other by its looks
}

std::shared_ptr<Checkpointer::Job> Checkpointer::make_job(const SaveRequest& request,
                                                          const Id& attempt) {
  check_step(request.step);
  const Clock::time_point called = Clock::now();
  auto job = std::make_shared<Job>(request.waited ? request.waited->begin : called);
  if (request.waited)
    job->times.add_until(Phase::kWait, request.waited->begin, request.waited->end);
  job->plan = planner_->plan(request, attempt);
  job->plan.manifest.writer_version = options_.writer_version;
  job->times.add(Phase::kPlan, called);
  job->stats.step = request.step;
  job->stats.bytes = job->plan.bytes;
  job->await_data = request.await_data;
  job->before_commit = request.before_commit;
  check_room(job->plan);
  take_arena(job->plan);
  return job;
}

// Ends a save that did not begin.  The other writers do not know yet and may be writing: the leader
// notes their directory for remove_abandoned(), a follower tells the leader.
void Checkpointer::refuse(const SaveRequest& request, const Error& error) {
  if (leads()) {
    if (linked()) options_.channel->decide({request.attempt, request.step, false, error.what()});
    const std::lock_guard lock(mutex_);
    abandoned_.push_back(join(root_, tmp_name(request.step, to_text(request.attempt))));
    return;
  }
  if (linked()) return options_.channel->fail(request.attempt, request.step, error.what());
  report_in_directory(request.step, request.attempt, error.what());
}

void Checkpointer::save(const SaveRequest& request) {
  const bool chosen = request.attempt != Id{};
  ASHLAR_ASSERT(chosen || options_.num_writers == 1);
  std::shared_ptr<Job> job;
  try {
    job = make_job(request, chosen ? request.attempt : random_id());
  } catch (const Error& caught) {
    const Error error = leads() ? cause_of(caught, *lease_, request.step) : caught;
    if (options_.num_writers > 1) refuse(request, error);
    if (leads() || error.kind() != ErrorKind::kStorage) throw error;
    log_.warn("{}", error.what());  // the leader reports it
    return;
  }
  if (linked()) {
    options_.channel->begin(job->plan.attempt, request.step);
    options_.channel->status(job->plan.attempt, Phase::kWait);
  }
  const Clock::time_point planned = Clock::now();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.size() < kMaxJobs; });
    job->times.add(Phase::kWait, planned);
    last_step_ = request.step;
    jobs_.push_back(job);
    to_copy_.push_back(job);
    if (!request.waited) job->stats.blocked_s = seconds_since(job->start);
  }
  changed_.notify_all();
  if (options_.async) return;
  wait();
  const std::lock_guard lock(mutex_);
  job->stats.blocked_s = seconds_since(job->start);
}

void Checkpointer::before_update() {
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(mutex_);
  if (to_copy_.empty()) return;
  const std::shared_ptr<Job> job = to_copy_.back();  // the last to be copied: the wait is its
  changed_.wait(lock, [&] { return to_copy_.empty(); });
  job->stats.blocked_s += seconds_since(start);
}

void Checkpointer::add_blocked(int64_t step, double seconds) {
  const std::lock_guard lock(mutex_);
  const auto add = [&](const std::shared_ptr<Job>& job) {
    if (job->plan.step == step) job->stats.blocked_s += seconds;
  };
  std::ranges::for_each(jobs_, add);
  std::ranges::for_each(committed_, add);
}

bool Checkpointer::wait_for_place(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return jobs_.size() < kMaxJobs; });
}

bool Checkpointer::drain(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return is_quiet(); });
}

void Checkpointer::give_up() {
  given_up_ = true;
  if (options_.channel) options_.channel->stop();
  changed_.notify_all();
}

void Checkpointer::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_quiet(); });
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

std::vector<RetireStats> Checkpointer::take_retired() {
  const std::lock_guard lock(mutex_);
  return std::exchange(retired_, {});
}

int Checkpointer::consecutive_failures() const {
  const std::lock_guard lock(mutex_);
  return consecutive_failures_;
}

bool Checkpointer::idle() const {
  const std::lock_guard lock(mutex_);
  return is_quiet();
}

void Checkpointer::recover(VerifyLevel level) {
  Recovery recovery = find_newest(lease_->fence(), level, log_);
  for (const RejectedStep& rejected : recovery.rejected) {
    log_.warn("setting {} aside under {}/{}", rejected.ref.directory, root_, kBadDirectory);
    quarantine(lease_->fence(), rejected.ref);
  }
  const std::lock_guard lock(mutex_);
  newest_ = recovery.newest;
  unchecked_ = false;
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
    const int64_t needed = room_to_save(plan.bytes_to_expect);
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
  if (!arena_) arena_ = std::make_unique<ChunkArena>(arena_chunks(plan, options_));
}

void Checkpointer::prepare(const SaveRequest& like) {
  ASHLAR_ASSERT(idle());
  take_arena(planner_->plan(like, random_id()));
  {
    const std::lock_guard lock(mutex_);
    to_touch_ = true;
  }
  changed_.notify_all();
}

}  // namespace ashlar::checkpoint
