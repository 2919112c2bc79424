#include "ashlar/checkpoint/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "ashlar/checkpoint/chunk_arena.h"
#include "ashlar/checkpoint/lease.h"
#include "ashlar/checkpoint/raise.h"
#include "ashlar/checkpoint/retention.h"
#include "ashlar/checkpoint/step_writer.h"
#include "ashlar/core/text.h"

namespace ashlar::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kReserveBytes = int64_t(16) << 20;
constexpr size_t kMaxJobs = 2;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Makes the root durable with every directory above it that had to be made.
void make_root(FileSystem& files, const std::string& root) {
  std::vector<std::string> made;
  for (std::string path = root; !files.stat(path); path = parent_of(path)) {
    made.push_back(path);
    if (parent_of(path) == path || parent_of(path) == ".") break;
  }
  files.make_directories(root);
  for (const std::string& path : made)
    if (files.stat(parent_of(path))) files.sync_directory(parent_of(path));
}

int64_t quarter_of_memory() {
  return int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE)) / 4;
}

// Creates the root first: the lease lies in it.
std::string prepared(FileSystem& files, std::string root) {
  make_root(files, root);
  return root;
}

}  // namespace

class Checkpointer::Engine {
 public:
  Engine(FileSystem& files, std::string root, CheckpointOptions options, Log& log)
      : files_(files),
        root_(prepared(files, std::move(root))),
        options_(std::move(options)),
        log_(log),
        lease_(files, root_, log) {
    ASHLAR_REQUIRE(options_.keep >= 1, kConfig, "checkpoint.keep is {}; expected at least 1",
                   options_.keep);
    collect_stale(files_, root_, log_);
    // After a kill the newest step may have been cut short in ways that its size does not show.
    recover(lease_.taken_over() ? VerifyLevel::kDeep : VerifyLevel::kQuick);
    if (options_.run_id.empty()) options_.run_id = newest_ ? newest_->run_id : to_text(random_id());
    copier_ = std::thread([this] { copy_loop(); });
    writer_ = std::thread([this] { write_loop(); });
  }

  ~Engine() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return jobs_.empty(); });
      stop_ = true;
      if (failure_) log_.warn("{}", failure_->what());
    }
    changed_.notify_all();
    copier_.join();
    writer_.join();
  }

  std::optional<StepRef> newest() const {
    const std::lock_guard lock(mutex_);
    return newest_;
  }

  StepReader open_newest() const {
    const std::optional<StepRef> ref = newest();
    ASHLAR_ASSERT(ref);
    return StepReader(files_, ref->directory);
  }

  void reject_newest(const std::string& reason) {
    ASHLAR_ASSERT(newest() && idle());
    const StepRef bad = *newest();
    log_.warn("{} is not usable: {}", bad.directory, reason);
    record_bad(files_, root_, bad, reason);
    recover(VerifyLevel::kDeep);  // one step was worse than it looked: trust no other by its looks
  }

  void save(const SaveRequest& request) {
    const Clock::time_point start = Clock::now();
    throw_failure();
    check_step(request.step);
    auto job = std::make_shared<Job>();
    job->plan = make_save_plan(request, options_.run_id, random_id());
    job->plan.manifest.writer_version = options_.writer_version;
    check_room(job->plan);
    job->start = start;
    job->stats.step = request.step;
    job->stats.bytes = job->plan.bytes;
    take_arena(job->plan);
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

  void before_update() {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    if (to_copy_.empty()) return;
    const std::shared_ptr<Job> job = to_copy_.back();
    changed_.wait(lock, [&] { return to_copy_.empty(); });
    job->stats.blocked_s += seconds_since(start);
  }

  void wait() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return jobs_.empty(); });
    }
    throw_failure();
  }

  std::vector<SaveStats> take_stats() {
    const std::lock_guard lock(mutex_);
    std::vector<SaveStats> stats;
    for (const auto& job : committed_) stats.push_back(job->stats);
    committed_.clear();
    return stats;
  }

  int64_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  int consecutive_failures() const {
    const std::lock_guard lock(mutex_);
    return consecutive_failures_;
  }
  const std::string& run_id() const { return options_.run_id; }

 private:
  struct Job {
    SavePlan plan;
    SaveStats stats;
    Clock::time_point start;
    std::unique_ptr<StepWriter> writer;  // the writer thread's; null once it failed
    std::optional<Error> error;          // the writer thread's
  };
  // One filled chunk on its way to the disk.
  struct Filled {
    std::shared_ptr<Job> job;
    size_t file;
    int64_t chunk, arena_chunk, bytes;
    bool last;
  };

  bool idle() const {
    const std::lock_guard lock(mutex_);
    return jobs_.empty();
  }

  void recover(VerifyLevel level) {
    Recovery recovery = find_newest(files_, root_, level, true, log_);
    for (const RejectedStep& rejected : recovery.rejected) {
      log_.warn("setting {} aside under {}/{}", rejected.ref.directory, root_, kBadDirectory);
      quarantine(files_, root_, rejected.ref);
    }
    const std::lock_guard lock(mutex_);
    newest_ = recovery.newest;
    last_step_ = newest_ ? newest_->step : -1;
  }

  void throw_failure() {
    std::optional<Error> failure;
    {
      const std::lock_guard lock(mutex_);
      failure.swap(failure_);
    }
    if (failure) throw *failure;
  }

  void check_step(int64_t step) const {
    ASHLAR_ASSERT(step >= 0 && step <= kMaxStep);
    const std::lock_guard lock(mutex_);
    ASHLAR_REQUIRE(step > last_step_, kConfig,
                   "step {} cannot be saved: {} already holds step {}; continue from it or choose "
                   "another directory",
                   step, root_, last_step_);
  }

  void check_room(const SavePlan& plan) const {
    const int64_t needed = plan.bytes + plan.bytes / 20 + kReserveBytes;
    const int64_t free = free_bytes(plan.step);
    ASHLAR_REQUIRE(free >= needed, kStorage,
                   "step {} is not saved: it needs {} but {} has {} free; make room or lower "
                   "checkpoint.keep",
                   plan.step, format_bytes(needed), root_, format_bytes(free));
  }

  int64_t free_bytes(int64_t step) const {
    try {
      return files_.free_bytes(root_);
    } catch (const Error& error) {
      raise(error.kind(), "step {} is not saved: asking for free space: {}", step, error.what());
    }
  }

  void take_arena(const SavePlan& plan) {
    if (arena_) return;
    int64_t chunks = 0;
    for (const FilePlan& file : plan.files)
      chunks += std::max<int64_t>(1, num_chunks(file.file.size_bytes));
    const int64_t limit =
        options_.max_arena_bytes > 0 ? options_.max_arena_bytes : quarter_of_memory();
    arena_ = std::make_unique<ChunkArena>(
        std::clamp<int64_t>(2 * chunks, 2, std::max<int64_t>(2, limit / kChunkBytes)));
  }

  void copy_loop() {
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

  void copy(const std::shared_ptr<Job>& job) {
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

  void write_loop() {
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

  void refresh_lease() {
    try {
      lease_.refresh();
    } catch (const Error& error) {
      log_.warn("the lease of {} was not refreshed: {}", root_, error.what());
    }
  }

  // Runs on the writer thread; a failed job's later chunks are only released.
  void write(const Filled& filled) {
    Job& job = *filled.job;
    if (!job.error) guarded(job, [&] { write_chunk(job, filled); });
    arena_->release(filled.arena_chunk);
    if (!filled.last) return;
    if (!job.error) guarded(job, [&] { commit(job); });
    finish(filled.job);
  }

  template <typename F>
  void guarded(Job& job, F&& body) {
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

  void write_chunk(Job& job, const Filled& filled) {
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

  void commit(Job& job) {
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

  void finish(const std::shared_ptr<Job>& job) {
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

  void retire() {
    try {
      retire_old_steps(files_, root_, options_.keep, options_.keep_every, log_);
    } catch (const Error&) {
      const std::lock_guard lock(mutex_);
      newest_ = previous_;  // the step was set aside
      throw;
    }
  }

  FileSystem& files_;
  std::string root_;
  CheckpointOptions options_;
  Log& log_;
  Lease lease_;
  std::unique_ptr<ChunkArena> arena_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;     // not finished, at most kMaxJobs
  std::deque<std::shared_ptr<Job>> to_copy_;  // the first is being copied
  std::deque<Filled> filled_;
  std::vector<std::shared_ptr<Job>> committed_;
  std::optional<StepRef> newest_, previous_;
  std::optional<Error> failure_;
  int64_t last_step_ = -1;
  int consecutive_failures_ = 0;
  bool stop_ = false;
  std::thread copier_, writer_;
};

Checkpointer::Checkpointer(FileSystem& files, std::string root, CheckpointOptions options, Log& log)
    : engine_(std::make_unique<Engine>(files, std::move(root), std::move(options), log)) {}
Checkpointer::~Checkpointer() = default;

std::optional<StepRef> Checkpointer::newest() const {
  return engine_->newest();
}
StepReader Checkpointer::open_newest() const {
  return engine_->open_newest();
}
void Checkpointer::reject_newest(const std::string& reason) {
  engine_->reject_newest(reason);
}
void Checkpointer::save(const SaveRequest& request) {
  engine_->save(request);
}
void Checkpointer::before_update() {
  engine_->before_update();
}
void Checkpointer::wait() {
  engine_->wait();
}
std::vector<SaveStats> Checkpointer::take_stats() {
  return engine_->take_stats();
}
int64_t Checkpointer::arena_bytes() const {
  return engine_->arena_bytes();
}
int Checkpointer::consecutive_failures() const {
  return engine_->consecutive_failures();
}
const std::string& Checkpointer::run_id() const {
  return engine_->run_id();
}

}  // namespace ashlar::checkpoint
