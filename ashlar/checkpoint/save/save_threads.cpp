// How it works.  The threads that copy and write behind a Checkpointer:
//
//   save()    to_copy_      copier_                    filled_      writer_
//   a Job --> [job job] --> make_ready();              [chunk ..] -> begin() at a job's first one;
//                           for each chunk: acquire ->               write, release each; after the
//                           memory, fill and hash it                 last: end_as_leader() or
//                                                                    end_as_follower(), finish()
//
// Queues are changed under mutex_; copying, hashing and writing go on without it.  The arena has a
// lock of its own, never taken under mutex_.  The copier waits for memory, but the writer never
// waits for the copier while it holds a chunk, so that a snapshot larger than the arena passes
// through at the speed of the disk.  Chunks are in filled_ in the order of jobs, files and offsets:
// the writer has one job at a time, whose `writer` and `error` no other thread touches.
//   A failure is kept in job.error, and the attempt is given up at once.  Later chunks of the job
// are only released, and the one marked `last` still ends it: every queued job is finished.
//   When the last chunk is written the leader collects the parts of the others, commits, and sends
// the result; a follower publishes its part, or waits until the leader knows of its failure
// (coordination.h).
#include <algorithm>
#include <chrono>
#include <utility>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

// A chunk of the arena, which is released unless it is taken.
class ArenaChunk {
 public:
  explicit ArenaChunk(ChunkArena& arena) : arena_(arena), number_(arena.acquire()) {}
  ~ArenaChunk() {
    if (number_ >= 0) arena_.release(number_);
  }
  ArenaChunk(const ArenaChunk&) = delete;
  std::span<std::byte> bytes() const { return arena_.bytes(number_); }
  int64_t take() { return std::exchange(number_, -1); }

 private:
  ChunkArena& arena_;
  int64_t number_;
};

// Runs a part of a save that copies; an error of it fails the save.
template <typename F>
std::optional<Error> failure_in_copy(int64_t step, F&& body) {
  const auto failure = [&](ErrorKind kind, const std::exception& error) {
    return Error(kind, fmt::format("step {} is not saved: {}", step, error.what()));
  };
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return failure(error.kind(), error);
  } catch (const std::bad_alloc& error) {
    return failure(ErrorKind::kMemory, error);
  }
}

}  // namespace

void Checkpointer::copy_loop() {
  const auto has_work = [&] { return stop_ || !to_copy_.empty(); };
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return to_touch_ || has_work(); });
      if (std::exchange(to_touch_, false)) {
        lock.unlock();
        arena_->touch([&] {
          const std::lock_guard inner(mutex_);
          return has_work();
        });
        lock.lock();
      }
      changed_.wait(lock, has_work);
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

// Fills in the plan and waits until the tensors may be copied.
std::optional<Error> Checkpointer::make_ready(Job& job) {
  return failure_in_copy(job.plan.step, [&] {
    Clock::time_point start = Clock::now();
    fill_in(job.plan);
    job.times.add(Phase::kPlan, start);
    if (!job.await_data) return;
    start = Clock::now();
    job.await_data();
    job.times.add(Phase::kWait, start);
  });
}

void Checkpointer::copy(const std::shared_ptr<Job>& job) {
  HostSource host;
  SnapshotSource& source = options_.source ? *options_.source : host;
  std::optional<Error> failure = make_ready(*job);
  bool whole = false;
  if (!failure)
    failure = failure_in_copy(job->plan.step, [&] { whole = copy_chunks(job, source); });
  source.end();
  if (!whole) queue({.job = job, .last = true, .failure = std::move(failure)});
}

// Queues all chunks of the job; false: it has none, or the save was given up.
bool Checkpointer::copy_chunks(const std::shared_ptr<Job>& job, SnapshotSource& source) {
  const std::vector<FilePlan>& files = job->plan.files;
  const size_t num_files = files.size();
  source.begin(files);
  for (size_t f = 0; f < num_files; ++f) {
    const FilePlan& file = files[f];
    const int64_t size_bytes = file.file.size_bytes;
    const int64_t chunks = std::max<int64_t>(1, num_chunks(size_bytes));
    for (int64_t c = 0; c < chunks; ++c) {
      if (coordination_->given_up()) return false;
      const int64_t begin = c * kChunkBytes, bytes = std::min(kChunkBytes, size_bytes - begin);
      ArenaChunk memory(*arena_);
      const auto out = memory.bytes().first(size_t(bytes));
      Clock::time_point start = Clock::now();
      fill_from_plan(file, begin, out, source);
      job->times.add(Phase::kCopy, start, bytes);
      start = Clock::now();
      const uint32_t crc = crc32c(out);  // while the processor's caches have it
      job->times.add(Phase::kHash, start, bytes);
      queue({job, f, c, memory.take(), bytes, crc, f + 1 == num_files && c + 1 == chunks});
    }
  }
  return num_files > 0;
}

void Checkpointer::queue(Filled filled) {
  {
    const std::lock_guard lock(mutex_);
    filled_.push_back(std::move(filled));
  }
  changed_.notify_all();
}

void Checkpointer::write_loop() {
  for (;;) {
    Filled next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !filled_.empty(); });
      if (filled_.empty()) return;
      next = std::move(filled_.front());
      filled_.pop_front();
    }
    write(next);
  }
}

// Writes one chunk, and after a job's last one ends the job.
void Checkpointer::write(const Filled& filled) {
  Job& job = *filled.job;
  if (!job.error && !job.writer) guarded(job, [&] { begin(job); });
  if (!job.error && filled.failure) guarded(job, [&] { throw *filled.failure; });
  if (!job.error) guarded(job, [&] { coordination_->require_going_on(job.plan.step); });
  if (filled.arena_chunk >= 0) {
    if (!job.error) guarded(job, [&] { write_chunk(job, filled); });
    arena_->release(filled.arena_chunk);
  }
  if (!filled.last) return;
  leads() ? end_as_leader(job) : end_as_follower(job);
  finish(filled.job);
}

// Runs a stage of the job.  An error becomes the job's, and what it has written is given up.
template <typename F>
void Checkpointer::guarded(Job& job, F&& body) {
  try {
    return body();
  } catch (const Error& error) {
    job.error = leads() ? leadership_->cause_of(error, job.plan.step) : error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorKind::kStorage,
                      fmt::format("step {} is not saved: {}", job.plan.step, error.what()));
  }
  drop(job);
  job.writer.reset();
}

// Reports the job's error to the other writers, and removes what was written so far.
void Checkpointer::drop(Job& job) {
  const SavePlan& plan = job.plan;
  if (!leads()) {
    job.failed =
        failed_part(plan.attempt, plan.step, *job.error, job.writer && job.writer->begun());
    job.writer.reset();
    return coordination_->fail(*job.failed);
  }
  coordination_->decide({plan.attempt, plan.step, false, job.error->what()});
  if (!job.writer) return;
  job.writer->abandon(leadership_->fence());
  if (options_.num_writers > 1) leadership_->add_abandoned(job.writer->directory());
}

void Checkpointer::begin(Job& job) {
  job.writer = std::make_unique<StepWriter>(files_, root_, job.plan, options_.retry_delay_s, log_,
                                            job.times, coordination_->host());
  job.writer->begin();
}

void Checkpointer::write_chunk(Job& job, const Filled& filled) {
  const Clock::time_point start = Clock::now();
  job.writer->write_chunk(filled.file, filled.chunk,
                          arena_->bytes(filled.arena_chunk).first(size_t(filled.bytes)),
                          filled.crc);
  job.written += filled.bytes;
  coordination_->status(job.plan.attempt, Phase::kWrite, job.written, job.plan.bytes);
  const std::lock_guard lock(mutex_);
  job.stats.write_s += seconds_since(start);
}

void Checkpointer::end_as_leader(Job& job) {
  if (!job.error)
    guarded(job, [&] {
      const Clock::time_point start = Clock::now();
      job.parts = coordination_->collect(*job.writer);
      job.times.add(Phase::kPart, start);
      const std::lock_guard lock(mutex_);
      job.stats.parts_s = seconds_since(start);
    });
  if (!job.error) guarded(job, [&] { prepare_commit(job); });
  if (!job.error) guarded(job, [&] { commit(job); });
  if (!job.error) coordination_->decide({job.plan.attempt, job.plan.step, true, ""});
}

void Checkpointer::end_as_follower(Job& job) {
  std::optional<std::string> refusal;
  if (!job.error) guarded(job, [&] { refusal = coordination_->publish(*job.writer); });
  if (job.failed) return coordination_->await_heard(*job.failed);
  job.writer.reset();
  if (refusal) {
    job.error = Error(ErrorKind::kStorage, *refusal);
    return;
  }
  const std::lock_guard lock(mutex_);
  ended_.consecutive_failures = 0;
}

void Checkpointer::prepare_commit(Job& job) {
  try {
    leadership_->check();
    if (job.before_commit) job.before_commit();
  } catch (const Error& error) {
    raise(error.kind(), "step {} is not saved: before its commit: {}", job.plan.step, error.what());
  }
}

void Checkpointer::commit(Job& job) {
  const Clock::time_point start = Clock::now();
  const std::string directory = job.writer->publish(leadership_->fence(), std::move(job.parts));
  std::vector<RankTimes> ranks = job.writer->rank_times();
  job.writer.reset();
  const int64_t bytes = bytes_of(job.plan.index);
  leadership_->add_newest({job.plan.step, directory, to_text(job.plan.attempt), options_.run_id},
                          std::move(job.plan.index.files));
  const std::lock_guard lock(mutex_);
  job.stats.bytes = bytes;
  job.stats.directory = directory;
  job.stats.commit_s = seconds_since(start);
  job.stats.total_s = seconds_since(job.start);
  job.stats.ranks = std::move(ranks);
  ended_.consecutive_failures = 0;
}

void Checkpointer::fail(int64_t step, const Error& error) {
  const std::lock_guard lock(mutex_);
  ++ended_.consecutive_failures;
  if (!leads()) return log_.warn("{}", error.what());  // the leader reports it
  // The message is copied, because copies of an Error share it and another thread frees this one.
  ended_.failures.push_back({step, Error(error.kind(), std::string(error.what()))});
}

void Checkpointer::finish(const std::shared_ptr<Job>& job) {
  if (leads()) leadership_->remove_abandoned();
  const bool refused = job->error && !leads() && !job->failed;  // the leader reports it
  if (job->error && !refused) fail(job->plan.step, *job->error);
  {
    std::unique_lock lock(mutex_);
    // The last chunk may be written before the copier has called end() and noted its time.
    changed_.wait(lock, [&] { return to_copy_.empty() || to_copy_.front() != job; });
    if (refused) ++ended_.consecutive_failures;
    if (leads() && !job->error) {
      ended_.committed.push_back(job);
      reader_->retire_soon();
    }
    std::erase(jobs_, job);
  }
  changed_.notify_all();
}

}  // namespace ashlar::checkpoint
