// How it works.  The two threads behind a Checkpointer:
//
//   save()    to_copy_      copier_                    filled_      writer_
//   a Job --> [job job] --> for each chunk: acquire -> [chunk ..] -> begin() at a job's first one;
//                           memory, fill it                          hash, write, release each;
//                                                                    after the last: await_parts(),
//                                                                    commit(), finish()
//
// Queues are changed under mutex_; copying, hashing and the disk go on without it.  The arena has a
// lock of its own, never taken under mutex_.  The copier waits for memory, the writer never waits
// for the copier with a chunk in hand, so that a snapshot larger than the arena goes through at the
// speed of the disk.  Chunks stand in filled_ in the order of jobs, files and offsets: the writer
// has one job at a time, whose `writer` and `error` no other thread touches.
//   A failure is kept in job.error, and the attempt is given up at once.  Later chunks of the job
// are only released, and the one marked `last` still ends it: every queued job is finished.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "ashlar/checkpoint/checkpointer.h"
#include "ashlar/checkpoint/raise.h"
#include "ashlar/checkpoint/retention.h"

namespace ashlar::checkpoint {

void Checkpointer::copy_loop() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !to_copy_.empty(); });
      if (to_copy_.empty()) return;
      job = to_copy_.front();  // stays in the queue: before_update() waits until it is empty
    }
    copy(job);
    {
      const std::lock_guard lock(mutex_);
      job->stats.copy_s = seconds_since(job->start);
      to_copy_.pop_front();
    }
    changed_.notify_all();
  }
}

void Checkpointer::copy(const std::shared_ptr<Job>& job) {
  const size_t num_files = job->plan.files.size();
  if (num_files == 0) {  // a writer without boxes: an element without memory ends the job
    const std::lock_guard lock(mutex_);
    filled_.push_back({job, 0, 0, -1, 0, true});
  }
  for (size_t f = 0; f < num_files; ++f) {
    const FilePlan& file = job->plan.files[f];
    const int64_t size_bytes = file.file.size_bytes;
    const int64_t chunks = std::max<int64_t>(1, num_chunks(size_bytes));
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t begin = c * kChunkBytes, bytes = std::min(kChunkBytes, size_bytes - begin);
      const int64_t arena_chunk = arena_->acquire();
      fill_from_plan(file, begin, arena_->bytes(arena_chunk).first(size_t(bytes)));
      {
        const std::lock_guard lock(mutex_);
        filled_.push_back({job, f, c, arena_chunk, bytes, f + 1 == num_files && c + 1 == chunks});
      }
      changed_.notify_all();
    }
  }
}

void Checkpointer::write_loop() {
  for (;;) {
    std::optional<Filled> next;
    {
      std::unique_lock lock(mutex_);
      // Not longer, so that an idle thread refreshes the lease.
      changed_.wait_for(lock, std::chrono::seconds(kLeaseRefresh_s),
                        [&] { return stop_ || !filled_.empty(); });
      if (filled_.empty() && stop_) return;
      if (!filled_.empty()) {
        next = std::move(filled_.front());
        filled_.pop_front();
      }
    }
    refresh_lease();
    if (next) write(*next);
  }
}

void Checkpointer::refresh_lease() {
  if (!lease_ || seconds_since(refreshed_) < kLeaseRefresh_s) return;
  refreshed_ = Clock::now();
  try {
    lease_->refresh();
  } catch (const Error& error) {
    log_.warn("the lease of {} was not refreshed: {}", root_, error.what());
  }
}

// One chunk, and behind a job's last one all that ends the job.
void Checkpointer::write(const Filled& filled) {
  Job& job = *filled.job;
  if (!job.error && !job.writer) guarded(job, [&] { begin(job); });
  if (filled.arena_chunk >= 0) {
    if (!job.error) guarded(job, [&] { write_chunk(job, filled); });
    arena_->release(filled.arena_chunk);
  }
  if (!filled.last) return;
  if (!job.error && leads()) guarded(job, [&] { await_parts(job); });
  if (!job.error && leads()) guarded(job, [&] { prepare_commit(job); });
  if (!job.error) guarded(job, [&] { leads() ? commit(job) : publish_part(job); });
  finish(filled.job);
}

// Runs a stage of the job.  An error is the job's, and what it has written so far is given up.
template <typename F>
void Checkpointer::guarded(Job& job, F&& body) {
  try {
    body();
  } catch (const Error& error) {
    job.error = error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorKind::kStorage,
                      fmt::format("step {} is not saved: {}", job.plan.step, error.what()));
  }
  if (!job.error || !job.writer) return;
  give_up(job);
  job.writer.reset();
}

void Checkpointer::give_up(Job& job) {
  if (!leads()) return job.writer->report_failure(job.error->what());
  job.writer->abandon();
  if (options_.num_writers == 1) return;
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(job.writer->directory());
}

void Checkpointer::begin(Job& job) {
  job.writer = std::make_unique<StepWriter>(files_, root_, job.plan, options_.retry_delay_s, log_);
  job.writer->begin();
}

void Checkpointer::write_chunk(Job& job, const Filled& filled) {
  const Clock::time_point start = Clock::now();
  job.writer->write_chunk(filled.file, filled.chunk,
                          arena_->bytes(filled.arena_chunk).first(size_t(filled.bytes)));
  const std::lock_guard lock(mutex_);
  job.stats.write_s += seconds_since(start);
}

// Looks for the parts after 1, 2, 4, ... ms, later ten times a second, and once more when the time
// is over.
void Checkpointer::await_parts(Job& job) {
  const Clock::time_point start = Clock::now();
  double delay_s = 0.001;
  for (;;) {
    const bool late = seconds_since(start) >= options_.part_timeout_s;
    const std::vector<int> missing = job.writer->missing_writers();
    if (missing.empty()) break;
    ASHLAR_REQUIRE(!late, kStorage,
                   "step {} is not saved: waiting for parts: {}: writer{} {} of {} did not finish "
                   "within {:.4g} s (checkpoint writers must share this directory)",
                   job.plan.step, job.writer->directory(), missing.size() == 1 ? "" : "s",
                   fmt::join(missing, ", "), options_.num_writers, options_.part_timeout_s);
    refresh_lease();
    std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    delay_s = std::min(0.1, 2 * delay_s);
  }
  const std::lock_guard lock(mutex_);
  job.stats.parts_s = seconds_since(start);
}

void Checkpointer::prepare_commit(Job& job) {
  try {
    if (lease_) lease_->check();
    if (job.before_commit) job.before_commit();
  } catch (const Error& error) {
    raise(error.kind(), "step {} is not saved: before its commit: {}", job.plan.step, error.what());
  }
}

void Checkpointer::commit(Job& job) {
  const Clock::time_point start = Clock::now();
  const std::string directory = job.writer->publish();
  job.writer.reset();
  const std::lock_guard lock(mutex_);
  job.stats.bytes = bytes_of(job.plan.index);
  job.stats.directory = directory;
  job.stats.commit_s = seconds_since(start);
  job.stats.total_s = seconds_since(job.start);
  previous_ = newest_;  // for retire()
  newest_ = {job.plan.step, directory, to_text(job.plan.attempt), options_.run_id};
  consecutive_failures_ = 0;
}

void Checkpointer::publish_part(Job& job) {
  job.writer->publish_part();
  job.writer.reset();
  const std::lock_guard lock(mutex_);
  consecutive_failures_ = 0;
}

// Under the mutex.
void Checkpointer::fail(int64_t step, const Error& error) {
  ++consecutive_failures_;
  if (!leads()) return log_.warn("{}", error.what());  // the leader reports it
  // The message is copied, because copies of an Error share it and another thread frees this one.
  failures_.push_back({step, Error(error.kind(), std::string(error.what()))});
}

void Checkpointer::finish(const std::shared_ptr<Job>& job) {
  if (leads() && !job->error) guarded(*job, [&] { retire(); });
  remove_abandoned();
  {
    const std::lock_guard lock(mutex_);
    if (job->error)
      fail(job->plan.step, *job->error);
    else if (leads())
      committed_.push_back(job);
    std::erase(jobs_, job);
    // A failed step may be tried again.
    last_step_ = newest_ ? newest_->step : -1;
    for (const auto& other : jobs_) last_step_ = std::max(last_step_, other->plan.step);
  }
  changed_.notify_all();
}

// A follower that was slower than the leader's verdict may have made its directory again.
void Checkpointer::remove_abandoned() {
  std::vector<std::string> directories;
  {
    const std::lock_guard lock(mutex_);
    directories = abandoned_;
  }
  for (const std::string& directory : directories) {
    try {
      if (files_.stat(directory)) files_.remove_all(directory);
    } catch (const Error& error) {
      log_.warn("{}; {} is collected at the next start", error.what(), directory);
    }
  }
}

void Checkpointer::retire() {
  try {
    retire_old_steps(files_, root_, options_.keep, options_.keep_every, log_);
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    // The newest step did not read back and was set aside; the job fails although it was committed.
    newest_ = previous_;
    throw;
  }
}

}  // namespace ashlar::checkpoint
