// The processes of one attempt: a starter (mpirun, srun, or the one process whose threads are the
// ranks) and the ranks.  LocalAttempt has them on this machine; fleet.h has those of several.
//
// A LocalAttempt knows the ranks that have told the launcher who they are.  Every rank is watched
// by its pidfd, whoever its parent is.  The starter is a child in a process group of its own, so
// that a terminal's Ctrl-C reaches the launcher alone.  If the launcher dies, the starter gets a
// signal by which the ranks save and stop.  A process has one LocalAttempt at a time, and no other
// children: it adopts the orphans below it, and fence() ends them too.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/clock.h"
#include "ashlar/launch/cause.h"
#include "ashlar/launch/output_lines.h"
#include "ashlar/launch/pid_fd.h"
#include "ashlar/launch/rank_socket.h"
#include "ashlar/launch/watch.h"

namespace ashlar::launch {

// kMpirun, kSrun: the lines of ranks begin with their number, and the starter says which rank ended
// first.
enum class StarterKind : uint8_t { kThreads, kMpirun, kSrun };

struct AttemptCommand {
  std::vector<std::string> words;  // the program, found by PATH, and its arguments
  StarterKind starter = StarterKind::kThreads;
  std::vector<std::string> variables = {};  // NAME=VALUE, beside those that the ranks may see
};

// Whether a variable of the environment would make ranks take part in the launcher's own job: those
// that Slurm, MPI and PMIx set for the processes that they start.
bool is_hidden_from_ranks(std::string_view variable);

class Attempt {
 public:
  virtual ~Attempt() = default;

  // Everything that has happened since the last call, or happens within so many seconds.
  struct News {
    std::vector<OutputLine> lines;
    std::vector<int> joined;        // ranks
    std::vector<Evidence> gone;     // kGone
    std::optional<Evidence> ended;  // kExit, kSignal or kNodeLost, once
  };
  virtual News wait(double seconds) = 0;
  virtual Watch::Sight look(Watch& watch, double now) = 0;  // at the ranks that live

  virtual void terminate() = 0;                     // asks the ranks to save and stop
  virtual bool fence() = 0;                         // kills all that is left; true: nothing is
  virtual int64_t memory_kills() const = 0;         // so far, where the ranks are
  virtual std::string host_of(int rank) const = 0;  // "": unknown
};

class LocalAttempt : public Attempt {
 public:
  LocalAttempt(const AttemptCommand& command, RankSocket& socket);  // kLaunch: it cannot be started
  ~LocalAttempt() override;                                         // fences
  LocalAttempt(const LocalAttempt&) = delete;
  LocalAttempt& operator=(const LocalAttempt&) = delete;

  News wait(double seconds) override;
  Watch::Sight look(Watch& watch, double now) override { return watch.look(pids_, now); }
  void terminate() override;
  bool fence() override;
  int64_t memory_kills() const override { return launch::memory_kills(); }
  std::string host_of(int /*rank*/) const override { return host_; }
  // Processes of the ranks that have joined and live.
  const std::map<int, pid_t>& ranks() const { return pids_; }

 private:
  [[noreturn]] static void run_child(const std::vector<char*>& arguments,
                                     const std::vector<char*>& variables, int output,
                                     pid_t launcher, int orphaned);
  void join(const JoinedRank& rank, News& news);
  void read_output(News& news);
  void take_line(std::string_view line, News& news);
  void look_at_ranks(News& news);
  Evidence end_of(int status) const;
  bool leaves_it_to_srun();

  RankSocket& socket_;
  const StarterKind kind_;
  pid_t starter_ = 0;
  PidFd starter_fd_;
  int output_ = -1;
  bool reaped_ = false, reported_ = false;
  int status_ = 0;
  LineCutter cutter_;
  std::map<int, pid_t> pids_;
  std::map<int, PidFd> pidfds_;
  std::vector<pollfd> watched_;  // socket, starter, output, then pidfds_
  std::string host_;
  std::map<int, std::string> errors_;  // the last line of each rank that begins as errors do
  int first_gone_ = -1;
  std::optional<Clock::time_point> fenced_since_;
  std::optional<BlamedRank> blamed_;
  std::string failed_node_;  // "": srun has told of none
};

}  // namespace ashlar::launch
