// The control channel of one rank's saves: SaveTree on links, with functions that wait.  Without a
// channel saves go through the directory of the attempt (coordination.h).
//
// Errors   await_parts: kStorage "step S is not saved: waiting for parts: ..." names the writer
//          that failed, or the rank that made no progress for timeout_s.
//          A broken channel is no error: functions that wait return nullopt, now and ever after,
//          and the leader logs it once.  After stop() they throw kStorage.
// Threads  any; the links' own thread brings messages.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/writers/save_tree.h"
#include "ashlar/checkpoint/writers/writer_part.h"
#include "ashlar/control/links.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

struct SaveChannelOptions {
  SaveTreeOptions tree;
  // The waits after which the slowest rank is logged; later it is logged at intervals of the last.
  std::vector<double> tell_after_s = {10, 30, 60};
  size_t max_message_bytes = size_t(256) << 20;
};

// The reason in the error of a save, or a reading back, that was given up.
inline constexpr const char* kGivenUp = "the run ends by an error and waits no longer";

// Looks for a child's file in this rank's view of the attempt's directory; throws if it is not
// there.
using SeeFile = std::function<void(int child, const Witness& witness)>;
// Does a rank's share of reading back.
using ReadBackWork = std::function<ReadBackResult(const SaveTree::Task& task)>;

class SaveChannel : public control::LinkUser {
 public:
  SaveChannel(std::shared_ptr<const control::Tree> tree, int rank, std::string host, Log& log,
              const SaveChannelOptions& options = {});
  ~SaveChannel() override;
  // Makes the links, which call this object.  An error that it throws breaks the channel.
  using MakeLinks = std::function<std::unique_ptr<control::Links>(control::LinkUser& user)>;
  void start(const MakeLinks& make);

  const control::Tree& tree() const { return *tree_of_ranks_; }
  const std::string& host() const { return host_; }
  bool broken() const;

  // Every rank.
  void begin(const Id& attempt, int64_t step);
  void status(const Id& attempt, Phase phase, int64_t bytes = 0, int64_t total_bytes = 0);
  void fail(const Id& attempt, int64_t step, const std::string& why);  // does not wait
  // This rank stops waiting for others: the run ends by an error.
  void stop();

  // A follower: sends its part, and waits for the result.
  void send_part(const WriterPart& part);
  std::optional<AttemptResult> await_result(const Id& attempt, const SeeFile& see);

  // The leader.
  std::optional<AllParts> await_parts(const Id& attempt, int64_t step, double timeout_s,
                                      const SeeFile& see);
  void decide(const AttemptResult& result);

  // Reading back.  The leader calls read_back, with the tasks by rank; it orders the work, does its
  // own share, and returns when all have done theirs.  The others call serve, which waits at most
  // so long for an order, and works.
  std::optional<ReadBackResult> read_back(const Id& attempt, int64_t step,
                                          std::map<int, std::vector<std::byte>> tasks,
                                          double timeout_s, const ReadBackWork& work);
  void serve(double seconds, const ReadBackWork& work);

  // LinkUser, on the thread of the links.
  void linked(int rank) override;
  void received(int rank, uint16_t kind, std::span<const std::byte> body) override;
  void lost(int rank, const std::string& why) override;
  void tick() override;

 private:
  class Watch;  // of the slowest rank
  using Lock = std::unique_lock<std::mutex>;
  double now() const { return seconds_since(start_); }
  void flush();                                              // with the lock held
  void require_going_on() const;                             // likewise
  void look(Lock& lock, const Id& attempt, const SeeFile&);  // at files of children
  bool run_task(Lock& lock, const ReadBackWork& work);

  std::shared_ptr<const control::Tree> tree_of_ranks_;
  const int rank_;
  const std::string host_;
  Log& log_;
  const SaveChannelOptions options_;
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  SaveTree tree_;
  KnownBoxes known_;  // the leader's
  bool told_broken_ = false, stopped_ = false;
  std::unique_ptr<control::Links> links_;
};

}  // namespace ashlar::checkpoint
