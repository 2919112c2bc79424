// A rank that is a process of MPI_COMM_WORLD: whose turn it is to call MPI, and the word of
// failures.
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

void check_mpi(int code, const char* call);  // kComm with MPI's words, if it failed

// The mutex around calls of MPI, for lanes that post and lanes that poll.  A lane that posts waits
// for it, and goes before all that poll.  A lane that polls only tries to take it: whoever calls
// MPI meanwhile moves the messages of all lanes.
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
  // MPI is initialised; outlived by it.  report: tells a person of a failure.
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
  // Ranks that fail at once choose the one that reports.  Should this rank then not come to
  // end_world in time, because a file system hangs, the world ends all the same.
  bool tell(const std::exception_ptr& error) override;

  // For native collectives: a communicator for each group, kept for groups of the same name, ranks
  // and lane.  To be made on all its ranks at once; the call waits for them.
  bool has_communicator(const Group& group) const;
  void make_communicator(const Group& group);
  MPI_Comm communicator(const Group& group) const;
  MPI_Op sum_of(DType dtype) const;

  // For transports.  MPI_THREAD_SERIALIZED: every call of MPI within a turn.
  MPI_Comm comm() const { return comm_; }
  Turn& turn() { return turn_; }
  // kComm where another rank has failed, or where this rank has interrupted the caller.  Before
  // that, where another has waited too long, tells it what this one waits for.  In a turn.
  void require_going_on(bool interrupted, function_ref<std::optional<LateError>()> waiting);

  // Lets one rank of the world report, if none has, then ends all of it.  Nobody uses MPI beside
  // the caller.
  [[noreturn]] void end_world(const std::exception_ptr& error);

 private:
  // A failure as it travels.
  struct Notice {
    static constexpr int kMostAwaited = 60;  // further ones are left out
    int rank, exit_code;
    int is_answer;  // of a rank that waits, to the one whose time-out it has heard of
    int num_awaited, awaited[kMostAwaited];
    char message[1800];
  };
  static Notice notice_of(const Failure& failure, bool is_answer);
  void send(const Notice& notice, int rank);
  void answer();
  void choose();  // the failure to tell, as all ranks do
  void report_cause();
  // Puts failures that others have told into failure_; returns whether any is known.  In a turn.
  bool hear();
  void listen();

  const Collectives collectives_;
  const Telling telling_;
  const Report report_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::map<std::pair<std::string, uint64_t>, MPI_Comm> communicators_;  // by lane and group
  mutable std::mutex communicators_mutex_;
  std::array<MPI_Op, 5> sums_{};  // bf16; integers of 1, 2, 4, 8 bytes
  int rank_ = 0, size_ = 1;
  Turn turn_;
  std::vector<int> tags_;    // the first of each lane
  Notice heard_{}, told_{};  // from others; to others
  MPI_Request listening_ = MPI_REQUEST_NULL;
  Failure failure_;         // the failure to tell: see `before`; rank -1: none
  bool announced_ = false;  // this rank has told the others of its own
  // Ranks that wait for others: what they answer this one, and what this one answers.
  std::vector<Failure> others_;
  std::optional<Failure> waiting_;
  Notice answer_{};
  int answered_ = -1;                        // the rank that has been told of waiting_
  std::optional<Clock::time_point> chosen_;  // when choose() had its answer; the caller's own
};

}  // namespace ashlar::comm
