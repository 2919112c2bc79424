// Saves training state while training goes on, and finds what to continue from.
//
//   Checkpointer checkpoints(files, root, options, log);   takes the root's lease, recovers
//   while (checkpoints.newest()) {                          resume
//     try { StepReader reader = checkpoints.open_newest(); reader.load(...); break; }
//     catch (const Error& error) { if (error.kind() != kCorrupt) throw;
//                                  checkpoints.reject_newest(error.what()); }
//   }
//   each step:  forward, backward;  checkpoints.before_update();  update;  checkpoints.save({...});
//   checkpoints.wait();                                     before a clean exit
//
// save() plans and returns; one thread copies the tensors into an arena in chunks of 4 MiB, a
// second hashes, writes, syncs and commits.  before_update() waits only until the copy is done.
// The arena is taken once, at the first save: room for two snapshots, or less where that passes
// the limit; a snapshot that does not fit waits for the disk instead of failing.  At most two
// saves are under way.
//
// Several writers   N processes (or threads) write one step together, each its own boxes; no tensor
// travels between them.  Each makes a Checkpointer on the same root, a directory that all of them
// share, and calls save() for the same steps with the same attempt.
//   Writer 0, the leader, is the only one that holds the lease, recovers, commits and removes; it
// is made first, and its run_id() goes to the others' options.  When its own files are down it
// waits for the parts of the others (parts.h), proves that all boxes together tile every tensor,
// and commits.
//   The others, the followers, have neither newest() nor open_newest(): the leader's directory is
// to be opened by all.  A follower's save ends when its part is written, and its wait() returns
// then; whether the step exists is known when the leader's wait() has returned, so before an end
// or a restart all meet after that.  A follower's failure is logged and counted there and reported
// by the leader: its step fails with "writer W of N: ...", W counted from 1 as in names of files.
// A writer that is not heard of for part_timeout_s fails the step likewise.
//
// Errors   of a save in the background wait for take_failures(), or for wait(), which throws the
//          oldest that nobody took: kStorage "step S is not saved: STAGE: PATH: ...".  The
//          attempt's files are removed; the next save starts afresh, whatever became of the one
//          before.  save() throws what keeps its own step from beginning; a synchronous one all of
//          it.  Several writers: kCorrupt names tensor and element that no writer, or two, have.
//          The constructor: kConfig if another process trains into the root, kCorrupt if the root
//          has steps but none is good.
// Threads  one caller.  The tensors of the last save must outlive this object or wait().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/checkpoint/chunk_arena.h"
#include "ashlar/checkpoint/lease.h"
#include "ashlar/checkpoint/recovery.h"
#include "ashlar/checkpoint/save_plan.h"
#include "ashlar/checkpoint/step_reader.h"
#include "ashlar/checkpoint/step_writer.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

struct CheckpointOptions {
  int64_t keep = 3;                       // newest steps kept; >= 1
  int64_t keep_every = 0;                 // and every this many steps for ever; 0: none
  bool async = true;                      // false: save() returns when the step is committed
  std::string run_id;                     // "": that of the newest step, else a new one
  std::string writer_version = "ashlar";  // of the program, for the manifest
  int64_t max_arena_bytes = 0;            // 0: a quarter of the machine's memory / local_writers
  int local_writers = 1;                  // of this step on this machine
  double retry_delay_s = 0.05;            // before the second try of a failed write
  int writer = 0, num_writers = 1;        // of each step; writers from 1 on need the run_id
  double part_timeout_s = 600;            // the leader's wait for the others, from its last file on
};

struct SaveStats {
  int64_t step = 0, bytes = 0;
  double blocked_s = 0;  // the caller waited: in save() and before_update()
  double copy_s = 0;     // from save() until the snapshot was complete
  double write_s = 0;    // hashing, writing and syncing data files
  double parts_s = 0;    // the leader waited for the parts of the others
  double commit_s = 0;   // index, manifest, COMMIT, rename
  double total_s = 0;    // from save() until committed
  std::string directory;
};

struct SaveFailure {
  int64_t step;
  Error error;
};

class Checkpointer {
 public:
  Checkpointer(FileSystem& files, std::string root, CheckpointOptions options, Log& log);
  ~Checkpointer();  // waits for saves under way; an error nobody took is logged
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // The newest good step, as the constructor found it or the last save made it.  The leader's.
  std::optional<StepRef> newest() const;
  StepReader open_newest() const;
  // The newest step turned out to be damaged: it is recorded and set aside, and the next older good
  // step takes its place; kCorrupt if there is none.  Not while a save is under way.
  void reject_newest(const std::string& reason);

  // Steps must increase: kConfig if `step` is not newer than every step there is.  kStorage if the
  // disk has too little room: 1.05 times the bytes of this writer's files and 16 MiB; the leader
  // asks for room for the files of all, if the request tells what is whole.
  void save(const SaveRequest& request);
  void before_update();
  void drain();  // until no save is under way; throws nothing
  void wait();   // drain(); throws the oldest failure that nobody took

  // The saves that were committed, and those that failed, since the last call, oldest first.  A
  // follower has none: the leader knows what became of a step.
  std::vector<SaveStats> take_stats();
  std::vector<SaveFailure> take_failures();
  // 0 before the first save.
  int64_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  // Saves that failed since the last that succeeded; one refused for lack of room is one of them.
  int consecutive_failures() const;
  const std::string& run_id() const { return options_.run_id; }

 private:
  // What the caller shares with the two threads:
  //
  //   caller    save(): plans, queues a Job in to_copy_
  //   copier_   to_copy_ -> chunks of the arena, queued in filled_
  //   writer_   filled_ -> files; commits a step after its last chunk and retires old ones, or
  //             (a follower) writes its part of the step
  //
  // The members from jobs_ to stop_ are used under mutex_; a Job's plan is fixed before it is
  // queued.
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

  // The caller's side.
  bool leads() const { return options_.writer == 0; }
  bool idle() const;
  std::shared_ptr<Job> make_job(const SaveRequest& request, const Id& attempt);
  void refuse(const SaveRequest& request, const Error& error);
  void recover(VerifyLevel level);
  void check_step(int64_t step) const;
  int64_t free_bytes(int64_t step) const;
  void check_room(const SavePlan& plan);  // a refusal is a failed save
  void take_arena(const SavePlan& plan);

  // The threads' side: save_threads.cpp.
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
