// A rank that is a process of MPI_COMM_WORLD: turns of its threads at calling MPI, and the exchange
// of failures.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/comm/transport.h"
#include "ashlar/comm/world.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::comm {

void check_mpi(int code, const char* call);  // kComm with MPI's message if the call failed

// The mutex around calls of MPI, for lanes that post and lanes that poll.  A lane that posts waits
// for it and has precedence.  A lane that polls only tries to take it: the lane that calls MPI
// meanwhile moves the messages of all lanes.
class Turn {
 public:
  void lock() {
    ++num_waiting_;
    mutex_.lock();
    --num_waiting_;
  }
  bool try_lock() { return num_waiting_ == 0 && mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::atomic<int> num_waiting_{0};
};

class MpiEngine final : public Engine {
 public:
  // MPI is initialised and outlives the engine.  report: reports a failure to the user.
  using Report = std::function<void(std::string_view message, int exit_code)>;
  MpiEngine(const Options& options, Report report);
  ~MpiEngine() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool immediate() const override { return size_ == 1; }
  std::unique_ptr<Transport> transport(std::string_view lane) override;
  std::unique_ptr<Executor> executor(std::string_view lane, FailureState& failure_state,
                                     Buffer staging, double timeout_s) override;
  void fail(const std::exception_ptr& error) override;
  // Ranks that fail at the same time choose the one that reports.  If this rank then does not reach
  // end_world in time, for example because a file system hangs, the world ends all the same.
  bool tell(const std::exception_ptr& error) override;

  // For native collectives: a communicator for each group, shared by groups of the same name, ranks
  // and lane.  All ranks of the group call make_communicator at once; the call waits for them.
  bool has_communicator(const Group& group) const;
  void make_communicator(const Group& group);
  MPI_Comm communicator(const Group& group) const;
  MPI_Op sum_of(DType dtype) const;

  // For transports.  MPI_THREAD_SERIALIZED: every call of MPI is made within a turn.
  MPI_Comm comm() const { return comm_; }
  Turn& turn() { return turn_; }
  // Throws kComm if another rank has failed, or if this rank has interrupted the caller.  If
  // another rank has waited too long, first answers what this one waits for.  Called within a turn.
  void require_going_on(bool interrupted, function_ref<std::optional<LateError>()> waiting);

  // Lets one rank of the world report, if none has, then ends the world.  No other thread uses MPI.
  [[noreturn]] void end_world(const std::exception_ptr& error);

 private:
  // A failure in the form in which it is sent.
  struct Notice {
    static constexpr int kMostAwaited = 60;  // more are left out
    int rank, exit_code;
    int is_answer;  // of a waiting rank, to the rank whose time-out it has heard of
    int num_awaited, awaited[kMostAwaited];
    char message[1800];
  };
  static Notice notice_of(const Failure& failure, bool is_answer);
  struct Process {
    uint64_t host;  // a hash of its name
    int64_t id;
  };
  // A failure of this rank.  A time-out names the ranks whose processes are gone, where this rank
  // can see it.
  Failure own_failure(const std::exception_ptr& error) const;
  void send(const Notice& notice, int rank);
  void answer();
  void choose();  // the failure to report; all ranks choose the same
  void report_cause();
  // Takes Notices of other ranks into failure_; returns whether a failure is known.  Within a turn.
  bool hear();
  void listen();

  const Collectives collectives_;
  const std::string native_lane_;
  const Telling telling_;
  const ErrorKind late_, lost_;
  const Report report_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::map<std::pair<std::string, uint64_t>, MPI_Comm> communicators_;  // by lane and group
  mutable std::mutex communicators_mutex_;
  std::array<MPI_Op, 5> sums_{};  // bf16; integers of 1, 2, 4, 8 bytes
  int rank_ = 0, size_ = 1;
  Turn turn_;
  std::vector<Process> processes_;  // by rank
  std::vector<int> tags_;           // the first of each lane
  Notice heard_{}, told_{};         // from others; to others
  MPI_Request listening_ = MPI_REQUEST_NULL;
  Failure failure_;         // the failure to report: see `before`; rank -1: none
  bool announced_ = false;  // this rank has sent its own to the others
  // Answers of waiting ranks to this one, and the answer of this one.
  std::vector<Failure> others_;
  std::optional<Failure> waiting_;
  Notice answer_{};
  int answered_ = -1;                        // the rank that waiting_ was sent to
  std::optional<Clock::time_point> chosen_;  // when choose() decided; used by the caller only
};

}  // namespace ashlar::comm
