// How it works.  This file is the caller's side; save_threads.cpp and read_back_thread.cpp are the
// threads' side.
//
//   constructor      the leader takes the lease, cleans up after killed processes and finds the
//                    newest good step (Leadership); then threads start
//   save()           make_job(): plan, room on the disk, arena if there is none yet.  Then the Job
//                    waits for one of kMaxJobs places and is queued
//   before_update()  waits until no job is left to copy: the tensors may change from then on
//   wait()           waits until no job is left at all
//
// A save can end without a step in two ways: refuse()d in save(), before its job is queued, or
// failed on the writer thread, which finish()es every job, failed or not.  The same step may then
// be tried again: only steps that are committed or queued count (check_step).  One condition
// variable serves all waits under mutex_.
//   Leadership has what only the leader does.  How writers reach one result is up to their
// Coordination; nothing here depends on which one it is.
#include "ashlar/checkpoint/save/checkpointer.h"

#include <algorithm>
#include <chrono>

#include "ashlar/checkpoint/format/raise.h"
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

// Creates the root first, since the lease is a file in it.
std::string prepared(FileSystem& files, std::string root) {
  make_durable_directories(files, root);
  return root;
}

std::unique_ptr<Coordination> coordination_of(const CheckpointOptions& options, FileSystem& files,
                                              const std::string& root, Log& log) {
  if (options.num_writers == 1 && !options.channel) return alone();
  auto directory = by_directory(
      files, root,
      {options.writer_rank, options.num_writers, options.part_timeout_s, options.retry_delay_s},
      log);
  if (!options.channel) return directory;
  return by_channel(*options.channel, options.writer_rank, options.part_timeout_s,
                    std::move(directory));
}

int64_t free_bytes(FileSystem& files, const std::string& root, int64_t step) {
  try {
    return files.free_bytes(root);
  } catch (const Error& error) {
    raise(error.kind(), "step {} is not saved: asking for free space: {}", step, error.what());
  }
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
  ASHLAR_ASSERT(0 <= options_.writer_rank && options_.writer_rank < options_.num_writers);
  ASHLAR_ASSERT(options_.writer_rank == 0 || !options_.run_id.empty());
  ASHLAR_REQUIRE(options_.keep >= 1, kConfig, "checkpoint.keep is {}; expected at least 1",
                 options_.keep);
  coordination_ = coordination_of(options_, files_, root_, log_);
  if (options_.writer_rank == 0) leadership_.emplace(files_, root_, options_.lease, log_);
  if (options_.run_id.empty()) options_.run_id = newest() ? newest()->run_id : to_text(random_id());
  planner_.emplace(options_.run_id, options_.writer_rank, options_.num_writers);
  writer_ = start_thread("that writes checkpoints", [this] { write_loop(); });
  try {
    copier_ = start_thread("that copies checkpoints", [this] { copy_loop(); });
    if (leads() || coordination_->serves())
      reader_ = std::make_unique<ReadBackThread>(
          files_, root_,
          ReadBackOptions{options_.keep, options_.keep_every, options_.read_back_bytes_per_s,
                          options_.writer_rank},
          leads() ? &*leadership_ : nullptr, *coordination_, log_,
          [this](int64_t step, const Error& error) { fail(step, error); });
  } catch (const Error&) {
    stop();
    throw;
  }
}

Checkpointer::~Checkpointer() {
  while (!drain(60)) continue;
  for (const SaveFailure& failure : ended_.failures) log_.warn("{}", failure.error.what());
  stop();
  if (leads()) leadership_->remove_abandoned();
}

void Checkpointer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (copier_.joinable()) copier_.join();
  reader_.reset();
  writer_.join();
}

std::optional<StepRef> Checkpointer::newest() const {
  return leads() ? leadership_->newest() : std::nullopt;
}

StepReader Checkpointer::open_newest() const {
  const std::optional<StepRef> ref = newest();
  ASHLAR_ASSERT(ref);
  return StepReader(files_, ref->directory);
}

std::optional<StepRef> Checkpointer::unchecked() const {
  return leads() ? leadership_->unchecked() : std::nullopt;
}

void Checkpointer::accept_newest() {
  leadership_.value().accept_newest();
}

void Checkpointer::reject_newest(const std::string& reason) {
  ASHLAR_ASSERT(drain(0));
  leadership_.value().reject_newest(reason);
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

// Ends a save that did not begin.  The other writers do not know that yet and may be writing.
void Checkpointer::refuse(const SaveRequest& request, const Error& error) {
  if (leads()) {
    coordination_->decide({request.attempt, request.step, false, error.what()});
    leadership_->add_abandoned(join(root_, tmp_name(request.step, to_text(request.attempt))));
    return;
  }
  FailedPart failed = failed_part(request.attempt, request.step, error);
  coordination_->fail(failed);
}

void Checkpointer::save(const SaveRequest& request) {
  const bool chosen = request.attempt != Id{};
  ASHLAR_ASSERT(chosen || options_.num_writers == 1);
  std::shared_ptr<Job> job;
  try {
    job = make_job(request, chosen ? request.attempt : random_id());
  } catch (const Error& caught) {
    const Error error = leads() ? leadership_->cause_of(caught, request.step) : caught;
    if (options_.num_writers > 1) refuse(request, error);
    if (leads() || error.kind() != ErrorKind::kStorage) throw error;
    log_.warn("{}", error.what());  // the leader reports it
    return;
  }
  coordination_->begin(job->plan.attempt, request.step);
  coordination_->status(job->plan.attempt, Phase::kWait);
  const Clock::time_point planned = Clock::now();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.size() < kMaxJobs; });
    job->times.add(Phase::kWait, planned);
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
  const std::shared_ptr<Job> job = to_copy_.back();  // the last to be copied causes the wait
  changed_.wait(lock, [&] { return to_copy_.empty(); });
  job->stats.blocked_s += seconds_since(start);
}

void Checkpointer::add_blocked(int64_t step, double seconds) {
  const std::lock_guard lock(mutex_);
  const auto add = [&](const std::shared_ptr<Job>& job) {
    if (job->plan.step == step) job->stats.blocked_s += seconds;
  };
  std::ranges::for_each(jobs_, add);
  std::ranges::for_each(ended_.committed, add);
}

bool Checkpointer::wait_for_place(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return jobs_.size() < kMaxJobs; });
}

// No step is committed without a job, so that reader_ stays idle once it is idle.
bool Checkpointer::drain(double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return jobs_.empty(); })) return false;
  }
  return !reader_ || reader_->wait_until_idle(deadline);
}

void Checkpointer::give_up() {
  coordination_->give_up();
  changed_.notify_all();
}

void Checkpointer::wait() {
  while (!drain(60)) continue;
  const std::lock_guard lock(mutex_);
  if (ended_.failures.empty()) return;
  const Error oldest = std::move(ended_.failures.front().error);
  ended_.failures.erase(ended_.failures.begin());
  throw oldest;
}

std::vector<SaveStats> Checkpointer::take_stats() {
  const std::lock_guard lock(mutex_);
  std::vector<SaveStats> stats;
  for (const auto& job : std::exchange(ended_.committed, {})) stats.push_back(job->stats);
  return stats;
}

std::vector<SaveFailure> Checkpointer::take_failures() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ended_.failures, {});
}

std::vector<RetireStats> Checkpointer::take_retired() {
  return reader_ ? reader_->take_retired() : std::vector<RetireStats>{};
}

int Checkpointer::consecutive_failures() const {
  const std::lock_guard lock(mutex_);
  return ended_.consecutive_failures;
}

void Checkpointer::check_step(int64_t step) const {
  ASHLAR_ASSERT(step >= 0 && step <= kMaxStep);
  if (!leads()) return;  // the leader's result holds for all
  int64_t last = -1;
  {
    // A job ends after its step is the newest.
    const std::lock_guard lock(mutex_);
    for (const auto& job : jobs_) last = std::max(last, job->plan.step);
  }
  if (const auto newest = leadership_->newest()) last = std::max(last, newest->step);
  ASHLAR_REQUIRE(step > last, kConfig,
                 "step {} cannot be saved: {} already holds step {}; continue from it or choose "
                 "another directory",
                 step, root_, last);
}

void Checkpointer::check_room(const SavePlan& plan) {
  try {
    const int64_t needed = room_to_save(plan.bytes_to_expect);
    const int64_t free = free_bytes(files_, root_, plan.step);
    ASHLAR_REQUIRE(free >= needed, kStorage,
                   "step {} is not saved: it needs {} but {} has {} free; make room or lower "
                   "checkpoint.keep",
                   plan.step, format_bytes(needed), root_, format_bytes(free));
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    ++ended_.consecutive_failures;
    throw;
  }
}

void Checkpointer::take_arena(const SavePlan& plan) {
  if (!arena_) arena_ = std::make_unique<ChunkArena>(arena_chunks(plan, options_));
}

void Checkpointer::prepare(const SaveRequest& like) {
  ASHLAR_ASSERT(drain(0));
  take_arena(planner_->plan(like, random_id()));
  {
    const std::lock_guard lock(mutex_);
    to_touch_ = true;
  }
  changed_.notify_all();
}

}  // namespace ashlar::checkpoint
