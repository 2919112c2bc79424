// How it works.  The threads that copy and write behind a Checkpointer:
//
//   save()    to_copy_      copier_                    filled_      writer_
//   a Job --> [job job] --> make_ready();              [chunk ..] -> begin() at a job's first one;
//                           for each chunk: acquire ->               write, release each; after the
//                           memory, fill and hash it                 last: await_parts(), commit(),
//                                                                    finish()
//
// Queues are changed under mutex_; copying, hashing and the disk go on without it.  The arena has a
// lock of its own, never taken under mutex_.  The copier waits for memory, the writer never waits
// for the copier with a chunk in hand, so that a snapshot larger than the arena goes through at the
// speed of the disk.  Chunks stand in filled_ in the order of jobs, files and offsets: the writer
// has one job at a time, whose `writer` and `error` no other thread touches.
//   A failure is kept in job.error, and the attempt is given up at once.  Later chunks of the job
// are only released, and the one marked `last` still ends it: every queued job is finished.
//   With a channel the leader tells its verdict as soon as it has one, and a follower waits for it
// at the end of its job.  If the channel breaks meanwhile, both turn to the directory: the follower
// writes its part there, and the leader, which may have had it already, waits for all parts anew.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/root/lost_root.h"
#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

// What a follower tells of its failure: the leader says which step it is.
std::string without_step(const Error& error, int64_t step) {
  const std::string text = error.what(), start = fmt::format("step {} is not saved: ", step);
  return text.starts_with(start) ? text.substr(start.size()) : text;
}

}  // namespace

void Checkpointer::copy_loop() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || to_touch_ || !to_copy_.empty(); });
      if (to_touch_) touch_arena(lock);
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

// Holds every chunk that it has touched until all are, or until there is a save: the chunk that is
// freed last is taken first, so that the save begins with touched ones.
void Checkpointer::touch_arena(std::unique_lock<std::mutex>& lock) {
  constexpr size_t kPageBytes = 4096;
  to_touch_ = false;
  std::vector<int64_t> touched;
  const auto num_chunks = size_t(arena_->size_bytes() / kChunkBytes);
  while (!stop_ && to_copy_.empty() && touched.size() < num_chunks) {
    lock.unlock();
    touched.push_back(arena_->acquire());
    const auto bytes = arena_->bytes(touched.back());
    for (size_t at = 0; at < bytes.size(); at += kPageBytes) bytes[at] = std::byte{0};
    lock.lock();
  }
  for (const int64_t chunk : touched) arena_->release(chunk);
}

// Fills in the plan and waits until there is something to copy.  An error is the job's.
void Checkpointer::make_ready(Job& job) {
  const auto fails = [&](ErrorKind kind, const std::exception& error) {
    job.no_data = Error(kind, fmt::format("step {} is not saved: {}", job.plan.step, error.what()));
  };
  try {
    Clock::time_point start = Clock::now();
    fill_in(job.plan);
    job.times.add(Phase::kPlan, start);
    if (!job.await_data) return;
    start = Clock::now();
    job.await_data();
    job.times.add(Phase::kWait, start);
  } catch (const Error& error) {
    fails(error.kind(), error);
  } catch (const std::bad_alloc& error) {
    fails(ErrorKind::kMemory, error);
  }
}

void Checkpointer::copy(const std::shared_ptr<Job>& job) {
  make_ready(*job);
  const size_t num_files = job->no_data ? 0 : job->plan.files.size();
  if (num_files == 0) return end_copy(job);
  for (size_t f = 0; f < num_files; ++f) {
    const FilePlan& file = job->plan.files[f];
    const int64_t size_bytes = file.file.size_bytes;
    const int64_t chunks = std::max<int64_t>(1, num_chunks(size_bytes));
    for (int64_t c = 0; c < chunks; ++c) {
      if (given_up_) return end_copy(job);
      const int64_t begin = c * kChunkBytes, bytes = std::min(kChunkBytes, size_bytes - begin);
      const int64_t arena_chunk = arena_->acquire();
      const auto memory = arena_->bytes(arena_chunk).first(size_t(bytes));
      Clock::time_point start = Clock::now();
      fill_from_plan(file, begin, memory);
      job->times.add(Phase::kCopy, start, bytes);
      start = Clock::now();
      const uint32_t crc = crc32c(memory);  // while the processor's caches have it
      job->times.add(Phase::kHash, start, bytes);
      {
        const std::lock_guard lock(mutex_);
        filled_.push_back(
            {job, f, c, arena_chunk, bytes, crc, f + 1 == num_files && c + 1 == chunks});
      }
      changed_.notify_all();
    }
  }
}

// Nothing more is to be written: an element without memory ends the job.
void Checkpointer::end_copy(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    filled_.push_back({job, 0, 0, -1, 0, 0, true});
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

// One chunk, and behind a job's last one all that ends the job.
void Checkpointer::write(const Filled& filled) {
  Job& job = *filled.job;
  if (!job.error && !job.writer) guarded(job, [&] { begin(job); });
  if (!job.error && job.no_data) guarded(job, [&] { throw *job.no_data; });
  if (!job.error) guarded(job, [&] { require_going_on(job); });
  if (filled.arena_chunk >= 0) {
    if (!job.error) guarded(job, [&] { write_chunk(job, filled); });
    arena_->release(filled.arena_chunk);
  }
  if (!filled.last) return;
  if (!job.error && leads()) guarded(job, [&] { await_parts(job); });
  if (!job.error && leads()) guarded(job, [&] { prepare_commit(job); });
  if (!job.error) guarded(job, [&] { leads() ? commit(job) : publish_part(job); });
  if (leads() && linked()) decide(job);
  if (!leads() && job.error && !job.leader_tells) await_verdict_on_failure(job);
  finish(filled.job);
}

// Runs a stage of the job.  An error is the job's, and what it has written so far is given up.
template <typename F>
void Checkpointer::guarded(Job& job, F&& body) {
  try {
    body();
  } catch (const Error& error) {
    job.error = leads() ? cause_of(error, *lease_, job.plan.step) : error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorKind::kStorage,
                      fmt::format("step {} is not saved: {}", job.plan.step, error.what()));
  }
  if (!job.error || !job.writer) return;
  drop(job);
  job.writer.reset();
}

void Checkpointer::require_going_on(const Job& job) const {
  ASHLAR_REQUIRE(!given_up_, kStorage, "step {} is not saved: {}", job.plan.step, kGivenUp);
}

// Tells the others of the job's error, and removes what was written so far.
void Checkpointer::drop(Job& job) {
  if (!leads()) {
    const SavePlan& plan = job.plan;
    const std::string why = without_step(*job.error, plan.step);
    if (linked()) return options_.channel->fail(plan.attempt, plan.step, why);
    return job.writer->report_failure(why);
  }
  if (linked()) decide(job);
  job.writer->abandon(lease_->fence());
  if (options_.num_writers == 1) return;
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(job.writer->directory());
}

// The leader's verdict, over the channel.
void Checkpointer::decide(const Job& job) {
  options_.channel->decide({job.plan.attempt, job.plan.step, !job.error,
                            job.error ? std::string(job.error->what()) : ""});
}

// A follower's failure is on its way to the leader; if the channel breaks first, the directory must
// tell it.
void Checkpointer::await_verdict_on_failure(const Job& job) {
  if (!linked() || given_up_) return;  // the directory was told, or nobody waits any more
  const auto unseen = [](int, const Witness&) {};
  try {
    if (!options_.channel->await_verdict(job.plan.attempt, unseen))
      report_in_directory(job.plan.step, job.plan.attempt, without_step(*job.error, job.plan.step));
  } catch (const Error&) {  // given up meanwhile
  }
}

void Checkpointer::report_in_directory(int64_t step, const Id& attempt, std::string_view why) {
  SavePlan nothing;
  nothing.step = step;
  nothing.attempt = attempt;
  nothing.writer = options_.writer + 1;
  PhaseRecorder times(Clock::now());
  StepWriter(files_, root_, nothing, options_.retry_delay_s, log_, times).report_failure(why);
}

void Checkpointer::begin(Job& job) {
  job.writer =
      std::make_unique<StepWriter>(files_, root_, job.plan, options_.retry_delay_s, log_, job.times,
                                   options_.channel ? options_.channel->host() : "");
  job.writer->begin();
}

void Checkpointer::write_chunk(Job& job, const Filled& filled) {
  const Clock::time_point start = Clock::now();
  job.writer->write_chunk(filled.file, filled.chunk,
                          arena_->bytes(filled.arena_chunk).first(size_t(filled.bytes)),
                          filled.crc);
  job.written += filled.bytes;
  if (linked())
    options_.channel->status(job.plan.attempt, Phase::kWrite, job.written, job.plan.bytes);
  const std::lock_guard lock(mutex_);
  job.stats.write_s += seconds_since(start);
}

void Checkpointer::await_parts(Job& job) {
  const Clock::time_point start = Clock::now();
  if (linked())
    job.parts = options_.channel->await_parts(
        job.plan.attempt, job.plan.step, options_.part_timeout_s,
        [&](int child, const Witness& witness) { see(job, child, witness); });
  if (!job.parts) await_parts_in_directory(job);
  job.times.add(Phase::kPart, start);
  const std::lock_guard lock(mutex_);
  job.stats.parts_s = seconds_since(start);
}

// Looks for the parts after 1, 2, 4, ... ms, later ten times a second, and once more when the time
// is over.
void Checkpointer::await_parts_in_directory(Job& job) {
  const Clock::time_point start = Clock::now();
  double delay_s = 0.001;
  for (;;) {
    require_going_on(job);
    const bool late = seconds_since(start) >= options_.part_timeout_s;
    const std::vector<int> missing = job.writer->missing_writers();
    if (missing.empty()) return;
    ASHLAR_REQUIRE(!late, kStorage,
                   "step {} is not saved: waiting for parts: {}: writer{} {} of {} did not finish "
                   "within {:.4g} s (checkpoint writers must share this directory)",
                   job.plan.step, job.writer->directory(), missing.size() == 1 ? "" : "s",
                   fmt::join(missing, ", "), options_.num_writers, options_.part_timeout_s);
    std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    delay_s = std::min(0.1, 2 * delay_s);
  }
}

// Writers that share no directory are found out by the one above them in the tree.
void Checkpointer::see(const Job& job, int child, const Witness& witness) {
  try {
    job.writer->check_witness(witness.path, witness.size_bytes);
  } catch (const Error& error) {
    raise(error.kind(), "what writer {} wrote is not seen by writer {}: {}", child + 1,
          options_.writer + 1, error.what());
  }
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
  const std::string directory = job.writer->publish(lease_->fence(), std::move(job.parts));
  std::vector<RankTimes> ranks = job.writer->rank_times();
  job.writer.reset();
  const std::lock_guard lock(mutex_);
  job.stats.bytes = bytes_of(job.plan.index);
  job.stats.directory = directory;
  job.stats.commit_s = seconds_since(start);
  job.stats.total_s = seconds_since(job.start);
  job.stats.ranks = std::move(ranks);
  newest_ = {job.plan.step, directory, to_text(job.plan.attempt), options_.run_id};
  newest_files_ = std::move(job.plan.index.files);
  consecutive_failures_ = 0;
}

void Checkpointer::publish_part(Job& job) {
  std::optional<Verdict> verdict;
  if (linked()) {
    options_.channel->status(job.plan.attempt, Phase::kSync);
    options_.channel->send_part(job.writer->make_part());
    verdict = options_.channel->await_verdict(
        job.plan.attempt, [&](int child, const Witness& witness) { see(job, child, witness); });
    if (verdict && !verdict->committed) {
      job.leader_tells = true;
      job.writer.reset();
      ASHLAR_FAIL(kStorage, "{}", verdict->why);
    }
  }
  if (!verdict) publish_in_directory(job);
  job.writer.reset();
  const std::lock_guard lock(mutex_);
  consecutive_failures_ = 0;
}

// With a channel the leader may have ended the attempt already, or do so meanwhile: then the
// attempt's directory is gone, or a step.
void Checkpointer::publish_in_directory(Job& job) {
  const auto is_ended = [&] { return options_.channel && !files_.stat(job.writer->directory()); };
  if (is_ended()) return;
  try {
    job.writer->publish_part();
  } catch (const Error&) {
    if (!is_ended()) throw;
  }
}

// Under the mutex.
void Checkpointer::fail(int64_t step, const Error& error) {
  ++consecutive_failures_;
  if (!leads()) return log_.warn("{}", error.what());  // the leader reports it
  // The message is copied, because copies of an Error share it and another thread frees this one.
  failures_.push_back({step, Error(error.kind(), std::string(error.what()))});
}

void Checkpointer::finish(const std::shared_ptr<Job>& job) {
  remove_abandoned();
  {
    const std::lock_guard lock(mutex_);
    if (job->error && job->leader_tells) {
      ++consecutive_failures_;
    } else if (job->error) {
      fail(job->plan.step, *job->error);
    } else if (leads()) {
      committed_.push_back(job);
      to_retire_ = true;
    }
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

}  // namespace ashlar::checkpoint
