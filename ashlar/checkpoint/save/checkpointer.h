// Saves training state while training goes on, and finds what to continue from.
//
//   Checkpointer checkpoints(files, root, options, log);   takes the root's lease, recovers
//   while (checkpoints.newest()) {                          resume
//     try { StepReader reader = checkpoints.open_newest(); reader.load(...); break; }
//     catch (const Error& error) { if (error.kind() != kCorrupt) throw;
//                                  checkpoints.reject_newest(error.what()); }
//   }
//   checkpoints.prepare({...});                             makes the first save as quick as others
//   each step:  forward, backward;  checkpoints.before_update();  update;  checkpoints.save({...});
//   checkpoints.wait();                                     before a clean exit
//
// save() plans and returns; one thread copies the tensors into an arena, in chunks of 4 MiB, and
// computes their checksums; a second writes, syncs and commits; a third reads the step back, with
// low priority, before older ones are removed.  before_update() waits only until the copy is done.
// The arena is taken once, by prepare() or else by the first save: room for two snapshots, or less
// if that exceeds the limit; a snapshot that does not fit waits for the disk instead of failing.
// At most two saves are in progress.
//
// Several writers   N processes (or threads) write one step together, each its own boxes; no tensor
// is sent between them.  Each makes a Checkpointer on the same root, a directory that all of them
// share, and calls save() for the same steps with the same attempt.
//   The writer of rank 0, the leader, is the only one that holds the lease, recovers, commits and
// removes; it is made first, and its run_id() goes into the options of the others.  When its own
// files are written it waits for the parts of the others (coordination.h), proves that all boxes
// together tile every tensor, and commits.
//   The others, the followers, have neither newest() nor open_newest(): all ranks open the leader's
// directory.  A follower logs and counts its own failure, and the leader reports it: the leader's
// save fails with "writer W of N: ...", W counted from 1 (writer_number).
//   With a channel (save_channel.h) parts, failures and the result are messages: a follower's save
// ends with the result, all ranks share the reading back, and a writer that makes no progress for
// part_timeout_s fails the step, with its name and its current phase in the error.
//   Without a channel, or when it breaks, parts go through the directory: a follower's save, and
// its wait(), end when its part is written.  Whether the step exists is known when the leader's
// wait() has returned, so all writers meet after that before an end or a restart.  A writer whose
// part is missing for part_timeout_s fails the step.
//
// Errors   of a save in the background are kept for take_failures(), or for wait(), which throws
//          the oldest that was not taken: kStorage "step S is not saved: STAGE: PATH: ...".  The
//          attempt's files are removed; the next save starts afresh, whatever the result of the
//          last one.  save() throws errors that keep its step from beginning, and if it is
//          synchronous all errors.  Several writers: kCorrupt names tensor and element that no
//          writer, or two, have.  The constructor: kConfig if another process trains into the root
//          (lease.h), kCorrupt if the root has steps but none is good.  A save: kConfig if another
//          process has taken the root over, since this one was silent too long; no later save can
//          succeed.
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

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/save/chunk_arena.h"
#include "ashlar/checkpoint/save/leadership.h"
#include "ashlar/checkpoint/save/read_back_thread.h"
#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/checkpoint/save/step_writer.h"
#include "ashlar/checkpoint/writers/coordination.h"
#include "ashlar/checkpoint/writers/save_channel.h"
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
  int64_t arena_bytes = 0;      // 0: two snapshots, at most a quarter of memory / local_writers
  int local_writers = 1;        // of this step on this machine
  double retry_delay_s = 0.05;  // before the second try of a failed write
  int writer_rank = 0, num_writers = 1;  // of each step; all but rank 0 need the run_id
  // The leader's wait for the others after its last file; with a channel: the time in which the
  // slowest makes no progress.
  double part_timeout_s = 600;
  SnapshotSource* source = nullptr;   // reads the tensors; null: they are in host memory
  SaveChannel* channel = nullptr;     // of this rank among the writers; it outlives this object
  int64_t read_back_bytes_per_s = 0;  // most that one rank reads of a step after its commit; 0: any
  LeaseOptions lease = {};
};

struct SaveStats {
  int64_t step = 0, bytes = 0;
  // The caller's waits: for a place, in save() and in before_update(), and those of add_blocked.
  double blocked_s = 0;
  double copy_s = 0;    // from save(), or the wait before it, until the snapshot was complete
  double write_s = 0;   // writing and syncing data files
  double parts_s = 0;   // the leader waited for the parts of the others
  double commit_s = 0;  // index, manifest, COMMIT, rename
  double total_s = 0;   // from the same moment as copy_s until committed
  std::string directory;
  // The times of every writer; without a channel those of the leader alone.
  std::vector<RankTimes> ranks;
};

struct SaveFailure {
  int64_t step;
  Error error;
};

// The free disk space that a save requires for a step's files: 1.05 times their bytes, and 16 MiB.
int64_t room_to_save(int64_t step_bytes);

class Checkpointer {
 public:
  Checkpointer(FileSystem& files, std::string root, CheckpointOptions options, Log& log);
  ~Checkpointer();  // waits for saves in progress (see give_up); logs errors that were not taken
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // The newest good step, found by the constructor or made by the last save; the leader's.
  std::optional<StepRef> newest() const;
  StepReader open_newest() const;
  // The newest step turned out to be damaged: it is recorded as bad and set aside, and the next
  // older good step becomes the newest; kCorrupt if there is none.  Not while a save is in
  // progress.
  void reject_newest(const std::string& reason);
  // The newest step, if a holder that was killed left it: all writers are to read it, each a part
  // (verify.h), before the leader calls accept_newest or reject_newest.
  std::optional<StepRef> unchecked() const;
  void accept_newest();

  // Steps must increase: kConfig if `step` is not newer than every step there is.  kStorage if the
  // disk has too little room (room_to_save) for this writer's files; the leader requires room for
  // the files of all, if the request has `whole`.
  void save(const SaveRequest& request);
  void before_update();
  // Adds to blocked_s of this step's save.  No effect if the save failed, or if take_stats() has
  // returned it.
  void add_blocked(int64_t step, double seconds);
  // Takes the arena for requests like this one.  A thread then touches its pages until there is a
  // save, so that the system need not clear them during the first one.
  void prepare(const SaveRequest& like);
  // Waits at most so long until save() need not wait for an earlier one; returns whether that is
  // so.
  bool wait_for_place(double seconds);
  // Waits at most so long until no save is in progress, and none is being read back; returns
  // whether that is so.  Throws nothing.
  bool drain(double seconds);
  // The run ends by an error and other writers may be gone: saves that are not committed fail,
  // reading back stops, and no writer is waited for.  The destructor still waits for the current
  // calls of the file system.
  void give_up();
  void wait();  // until drain() is true; throws the oldest failure that was not taken

  // The saves that were committed, and those that failed, since the last call, oldest first.  A
  // follower has none: only the leader knows the result of a step.
  std::vector<SaveStats> take_stats();
  std::vector<SaveFailure> take_failures();
  std::vector<RetireStats> take_retired();  // steps that were read back whole since the last call
  // 0 before the first save.
  int64_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  // Saves that failed since the last success, including those refused for lack of room.
  int consecutive_failures() const;
  const std::string& run_id() const { return options_.run_id; }

 private:
  // The data flow between the caller and the threads:
  //
  //   caller    save(): plans, queues a Job in to_copy_
  //   copier_   to_copy_ -> fills in the plan; chunks of the arena, queued in filled_
  //   writer_   filled_ -> files; after a step's last chunk the leader commits it, and a follower
  //             publishes its part
  //   reader_   reads a committed step back, or (a follower) its share of one, and retires old ones
  //
  // The members from jobs_ to to_touch_ are used under mutex_.  A Job's plan belongs to the thread
  // that has the Job: the caller until it is queued, copier_ until its first chunk is queued, then
  // writer_, while copier_ still reads its sources.
  struct Job {
    explicit Job(Clock::time_point start) : start(start), times(start) {}
    SavePlan plan;
    SaveStats stats;
    std::function<void()> await_data, before_commit;
    const Clock::time_point start;
    PhaseRecorder times;
    // The writer thread's:
    std::unique_ptr<StepWriter> writer;  // null once it failed
    std::optional<Error> error;
    std::optional<FailedPart> failed;  // a follower's, whose error it is; none: the leader refused
    std::optional<AllParts> parts;     // the leader's; none: they are in the directory
    int64_t written = 0;
  };
  // One filled chunk on its way to the disk.
  struct Filled {
    std::shared_ptr<Job> job;
    size_t file = 0;
    int64_t chunk = 0;
    int64_t arena_chunk = -1;  // -1: nothing more is to be written
    int64_t bytes = 0;
    uint32_t crc = 0;
    bool last = false;
    std::optional<Error> failure = std::nullopt;  // why the tensors could not be copied
  };
  // Saves that ended, until they are taken.
  struct Ended {
    std::vector<std::shared_ptr<Job>> committed;  // the leader's
    std::vector<SaveFailure> failures;            // likewise
    int consecutive_failures = 0;
  };

  // The caller's side.
  bool leads() const { return leadership_.has_value(); }
  std::shared_ptr<Job> make_job(const SaveRequest& request, const Id& attempt);
  void refuse(const SaveRequest& request, const Error& error);
  void check_step(int64_t step) const;
  void check_room(const SavePlan& plan);  // a refusal is a failed save
  void take_arena(const SavePlan& plan);
  void stop();  // ends the threads

  // The threads' side: save_threads.cpp.
  void copy_loop();
  std::optional<Error> make_ready(Job& job);
  void copy(const std::shared_ptr<Job>& job);
  bool copy_chunks(const std::shared_ptr<Job>& job, SnapshotSource& source);
  void queue(Filled filled);
  void write_loop();
  void write(const Filled& filled);
  template <typename F>
  void guarded(Job& job, F&& body);
  void begin(Job& job);
  void write_chunk(Job& job, const Filled& filled);
  void drop(Job& job);
  void end_as_leader(Job& job);
  void end_as_follower(Job& job);
  void prepare_commit(Job& job);
  void commit(Job& job);
  void fail(int64_t step, const Error& error);
  void finish(const std::shared_ptr<Job>& job);

  FileSystem& files_;
  std::string root_;
  CheckpointOptions options_;
  Log& log_;
  std::optional<Leadership> leadership_;  // of writer 0
  std::unique_ptr<Coordination> coordination_;
  std::optional<SavePlanner> planner_;  // from the constructor on
  std::unique_ptr<ChunkArena> arena_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;     // not finished, at most kMaxJobs
  std::deque<std::shared_ptr<Job>> to_copy_;  // the first is being copied
  std::deque<Filled> filled_;
  Ended ended_;
  bool stop_ = false, to_touch_ = false;  // to_touch_: the arena's pages, before the first save
  std::thread copier_, writer_;
  std::unique_ptr<ReadBackThread> reader_;  // null: a follower that is never asked to read
};

}  // namespace ashlar::checkpoint
