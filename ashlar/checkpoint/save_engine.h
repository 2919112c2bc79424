// The two threads behind a Checkpointer, and what its caller shares with them.
//
//   caller    save(): plans, queues a Job in to_copy_
//   copier_   to_copy_ -> chunks of the arena, queued in filled_
//   writer_   filled_ -> files; commits a step after its last chunk and retires old ones, or
//             (a follower) writes its part of the step
//
// The members from jobs_ to stop_ are used under mutex_; a Job's plan is fixed before it is queued.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "ashlar/checkpoint/checkpointer.h"
#include "ashlar/checkpoint/chunk_arena.h"
#include "ashlar/checkpoint/lease.h"
#include "ashlar/checkpoint/step_writer.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {

class Checkpointer::Engine {
 public:
  Engine(FileSystem& files, std::string root, CheckpointOptions options, Log& log);
  ~Engine();

  std::optional<StepRef> newest() const;
  StepReader open_newest() const;
  void reject_newest(const std::string& reason);
  void save(const SaveRequest& request);
  void before_update();
  void drain();
  void wait();
  std::vector<SaveStats> take_stats();
  std::vector<SaveFailure> take_failures();
  int64_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  int consecutive_failures() const;
  const std::string& run_id() const { return options_.run_id; }

 private:
  struct Job {
    SavePlan plan;
    SaveStats stats;
    std::function<void()> before_commit;
    Clock::time_point start;
    std::unique_ptr<StepWriter> writer;  // the writer thread's; null once it failed
    std::optional<Error> error;          // the writer thread's
  };
  // One filled chunk on its way to the disk.
  struct Filled {
    std::shared_ptr<Job> job;
    size_t file;
    int64_t chunk, arena_chunk, bytes;  // arena_chunk -1: this writer has no file in the step
    bool last;
  };

  // The caller's side: checkpointer.cpp.
  bool leads() const { return options_.writer == 0; }
  bool idle() const;
  std::shared_ptr<Job> make_job(const SaveRequest& request, const Id& attempt);
  void refuse(const SaveRequest& request, const Error& error);
  void recover(VerifyLevel level);
  void check_step(int64_t step) const;
  int64_t free_bytes(int64_t step) const;
  void check_room(const SavePlan& plan);  // a refusal is a failed save
  void take_arena(const SavePlan& plan);

  // The threads' side: save_engine.cpp.
  void copy_loop();
  void copy(const std::shared_ptr<Job>& job);
  void write_loop();
  void refresh_lease();  // if it is due
  void write(const Filled& filled);
  template <typename F>
  void guarded(Job& job, F&& body);
  void begin(Job& job);
  void write_chunk(Job& job, const Filled& filled);
  void give_up(Job& job);
  void await_parts(Job& job);
  void prepare_commit(Job& job);
  void commit(Job& job);
  void publish_part(Job& job);
  void fail(int64_t step, const Error& error);
  void finish(const std::shared_ptr<Job>& job);
  void retire();
  void stop();  // ends the threads
  void remove_abandoned();

  FileSystem& files_;
  std::string root_;
  CheckpointOptions options_;
  Log& log_;
  std::optional<Lease> lease_;                  // the leader's
  Clock::time_point refreshed_ = Clock::now();  // the writer thread's
  std::unique_ptr<ChunkArena> arena_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;     // not finished, at most kMaxJobs
  std::deque<std::shared_ptr<Job>> to_copy_;  // the first is being copied
  std::deque<Filled> filled_;
  std::vector<std::shared_ptr<Job>> committed_;  // the leader's, until they are taken
  std::vector<SaveFailure> failures_;            // likewise
  std::optional<StepRef> newest_, previous_;
  int64_t last_step_ = -1;
  int consecutive_failures_ = 0;
  std::vector<std::string> abandoned_;  // attempts in which a slow follower may still write
  bool stop_ = false;
  std::thread copier_, writer_;
};

}  // namespace ashlar::checkpoint
