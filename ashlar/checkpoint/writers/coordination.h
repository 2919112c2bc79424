// The way in which the writers of one step come to one result.
//
// Each writer has a Coordination, through which it and the others report about their saves.  The
// leader collects the parts of the others and decides; every other writer, a follower, publishes
// its part, or reports why it has none.  There are three kinds:
//
//   alone         there is one writer, and no other to report to
//   by_directory  parts and failures are files in the attempt's directory (save/parts.h).  A
//                 follower's save ends with its part, and it does not learn the result
//   by_channel    parts, failures and the result are messages (save_channel.h).  Once the channel
//                 is broken everything goes through another Coordination
//
// Errors   kStorage "step S is not saved: ...": a writer failed, its time is out, or give_up() was
//          called.  fail and await_heard throw nothing: a failure that cannot be reported is
//          logged.
// Threads  begin, fail and decide from the caller's thread and the one that writes; collect,
//          publish and await_heard from the one that writes; read_back and serve from the one that
//          reads back; status and give_up from any.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/writers/save_channel.h"
#include "ashlar/checkpoint/writers/writer_part.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

// One writer's files of an attempt: StepWriter (save/step_writer.h).
class AttemptFiles {
 public:
  virtual ~AttemptFiles() = default;
  virtual int64_t step() const = 0;
  virtual const Id& attempt() const = 0;
  virtual const std::string& directory() const = 0;
  virtual bool is_there() const = 0;  // the directory: the leader renames or removes it in the end

  // A follower's, after its last chunk: its part as a message, or as a file in the directory.
  virtual WriterPart make_part() = 0;
  virtual void publish_part() = 0;
  // The leader's: the ranks of the writers whose parts are not in the directory.  kStorage names
  // one that failed.
  virtual std::vector<int> missing_writers() = 0;
  // Throws unless another writer's file is seen from here with this size.
  virtual void check_witness(const std::string& path, int64_t size_bytes) = 0;
};

// The report of a follower that has no part in an attempt.
struct FailedPart {
  Id attempt{};
  int64_t step = 0;
  std::string why;         // without the words "step S is not saved", which the leader adds
  bool begun = false;      // this writer made the attempt's directory
  bool in_flight = false;  // fail() sent a message, which may get lost
};
FailedPart failed_part(const Id& attempt, int64_t step, const Error& error, bool begun = false);

class Coordination {
 public:
  Coordination() = default;
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;
  virtual ~Coordination() = default;

  // All writers.
  virtual std::string host() const = 0;  // of this rank, as others see it; "": they do not
  virtual void begin(const Id& attempt, int64_t step) = 0;  // a save was accepted
  virtual void status(const Id& attempt, Phase phase, int64_t bytes = 0,
                      int64_t total_bytes = 0) = 0;
  // The run ends by an error, and other writers may be gone: every wait ends, now and later.
  virtual void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }
  void require_going_on(int64_t step) const;  // kStorage after give_up()

  // A follower.  publish returns the leader's reason against the step; nullopt: the step is
  // committed, or, if followers do not receive the result, this writer's part is published.
  virtual std::optional<std::string> publish(AttemptFiles& own) = 0;
  virtual void fail(FailedPart& part) = 0;  // does not wait
  // Ends a save that failed: returns when the leader is known to have what fail() reported.
  virtual void await_heard(const FailedPart& part) = 0;

  // The leader.  collect returns when all others have published; nullopt: their parts are in the
  // directory.  The leader decides the result of each attempt once; it is sent to followers that
  // wait for it.
  virtual std::optional<AllParts> collect(AttemptFiles& own) = 0;
  virtual void decide(const AttemptResult& result) = 0;

  // Reading a committed step back.  The leader calls read_back with the files that were written,
  // and all ranks read them, each those of another; nullopt: the leader is to read them alone.
  virtual std::optional<ReadBackResult> read_back(const Id& attempt, int64_t step,
                                                  std::vector<IndexFile> written,
                                                  const ReadBackWork& work) = 0;
  // A follower calls serve, which waits at most so long for an order, and does its share.
  virtual bool serves() const = 0;  // false: followers are never asked
  virtual void serve(double seconds, const ReadBackWork& work) = 0;

 private:
  std::atomic<bool> given_up_ = false;
};

std::unique_ptr<Coordination> alone();

struct DirectoryOptions {
  int writer_rank = 0, num_writers = 1;
  double timeout_s = 600;       // the leader's wait for parts
  double retry_delay_s = 0.05;  // before the second try to report a failure
};
std::unique_ptr<Coordination> by_directory(FileSystem& files, std::string root,
                                           const DirectoryOptions& options, Log& log);

// timeout_s: of the leader's waits, while the slowest rank makes no progress.
std::unique_ptr<Coordination> by_channel(SaveChannel& channel, int writer_rank, double timeout_s,
                                         std::unique_ptr<Coordination> when_broken);

}  // namespace ashlar::checkpoint
