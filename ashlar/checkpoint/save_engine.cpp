#include "ashlar/checkpoint/save_engine.h"

#include <algorithm>

#include "ashlar/checkpoint/retention.h"

namespace ashlar::checkpoint {

void Checkpointer::Engine::copy_loop() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !to_copy_.empty(); });
      if (to_copy_.empty()) return;
      job = to_copy_.front();
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

void Checkpointer::Engine::copy(const std::shared_ptr<Job>& job) {
  const size_t num_files = job->plan.files.size();
  ASHLAR_ASSERT(num_files > 0);
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

void Checkpointer::Engine::write_loop() {
  Clock::time_point refreshed = Clock::now();
  for (;;) {
    std::optional<Filled> next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(kLeaseRefresh_s),
                        [&] { return stop_ || !filled_.empty(); });
      if (filled_.empty() && stop_) return;
      if (!filled_.empty()) {
        next = std::move(filled_.front());
        filled_.pop_front();
      }
    }
    if (seconds_since(refreshed) >= kLeaseRefresh_s) {
      refreshed = Clock::now();
      refresh_lease();
    }
    if (next) write(*next);
  }
}

void Checkpointer::Engine::refresh_lease() {
  try {
    lease_.refresh();
  } catch (const Error& error) {
    log_.warn("the lease of {} was not refreshed: {}", root_, error.what());
  }
}

// Runs on the writer thread; a failed job's later chunks are only released.
void Checkpointer::Engine::write(const Filled& filled) {
  Job& job = *filled.job;
  if (!job.error) guarded(job, [&] { write_chunk(job, filled); });
  arena_->release(filled.arena_chunk);
  if (!filled.last) return;
  if (!job.error) guarded(job, [&] { commit(job); });
  finish(filled.job);
}

template <typename F>
void Checkpointer::Engine::guarded(Job& job, F&& body) {
  try {
    body();
  } catch (const Error& error) {
    job.error = error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorKind::kStorage,
                      fmt::format("step {} is not saved: {}", job.plan.step, error.what()));
  }
  if (!job.error || !job.writer) return;
  job.writer->abandon();
  job.writer.reset();
}

void Checkpointer::Engine::write_chunk(Job& job, const Filled& filled) {
  const Clock::time_point start = Clock::now();
  if (!job.writer) {
    job.writer =
        std::make_unique<StepWriter>(files_, root_, job.plan, options_.retry_delay_s, log_);
    job.writer->begin();
  }
  job.writer->write_chunk(filled.file, filled.chunk,
                          arena_->bytes(filled.arena_chunk).first(size_t(filled.bytes)));
  const std::lock_guard lock(mutex_);
  job.stats.write_s += seconds_since(start);
}

void Checkpointer::Engine::commit(Job& job) {
  const Clock::time_point start = Clock::now();
  const std::string directory = job.writer->publish();
  job.writer.reset();
  const std::lock_guard lock(mutex_);
  job.stats.directory = directory;
  job.stats.commit_s = seconds_since(start);
  job.stats.total_s = seconds_since(job.start);
  previous_ = newest_;
  newest_ = {job.plan.step, directory, to_text(job.plan.attempt), options_.run_id};
  consecutive_failures_ = 0;
}

void Checkpointer::Engine::finish(const std::shared_ptr<Job>& job) {
  if (!job->error) guarded(*job, [&] { retire(); });
  {
    const std::lock_guard lock(mutex_);
    if (job->error) {
      ++consecutive_failures_;
      if (failure_) log_.warn("{}", failure_->what());  // nobody took the one before
      // A message of its own: it is read and freed by another thread.
      failure_ = Error(job->error->kind(), std::string(job->error->what()));
    } else {
      committed_.push_back(job);
    }
    std::erase(jobs_, job);
    last_step_ = newest_ ? newest_->step : -1;  // a failed step may be tried again
    for (const auto& other : jobs_) last_step_ = std::max(last_step_, other->plan.step);
  }
  changed_.notify_all();
}

void Checkpointer::Engine::retire() {
  try {
    retire_old_steps(files_, root_, options_.keep, options_.keep_every, log_);
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    newest_ = previous_;  // the step was set aside
    throw;
  }
}

}  // namespace ashlar::checkpoint
