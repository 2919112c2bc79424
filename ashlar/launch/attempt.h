// The processes of one attempt: a starter (mpirun, or the one process whose threads are the ranks)
// and the ranks that have told the launcher who they are.
//
// Every rank is watched by its pidfd, whoever its parent is.  The starter is a child in a process
// group of its own, so that a terminal's Ctrl-C reaches the launcher alone, and gets SIGTERM if the
// launcher dies.  A process has one Attempt at a time, and no other children: it adopts the orphans
// below it, and fence() ends them too.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/launch/cause.h"
#include "ashlar/launch/output_lines.h"
#include "ashlar/launch/rank_socket.h"

namespace ashlar::launch {

struct AttemptCommand {
  std::vector<std::string> words;           // the program, found by PATH, and its arguments
  bool tagged = false;                      // its lines begin with their rank (parse_tagged)
  std::vector<std::string> variables = {};  // NAME=VALUE, beside those that the ranks may see
};

// Whether a variable of the environment would make ranks take part in the launcher's own job: those
// that Slurm, MPI and PMIx set for the processes that they start.
bool is_hidden_from_ranks(std::string_view variable);

class Attempt {
 public:
  Attempt(const AttemptCommand& command, RankSocket& socket);  // kLaunch: it cannot be started
  ~Attempt();                                                  // fences
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Everything that has happened since the last call, or happens within so many seconds.
  struct News {
    std::vector<OutputLine> lines;
    std::vector<int> joined;        // ranks
    std::vector<Evidence> gone;     // kGone
    std::optional<Evidence> ended;  // kExit or kSignal, once
  };
  News wait(double seconds);

  void terminate();  // asks the ranks to save and stop
  bool fence();      // kills all that is left; true: nothing is

  // Processes of the ranks that have joined and live.
  const std::map<int, pid_t>& ranks() const { return pids_; }
  const std::string& host() const { return host_; }

 private:
  [[noreturn]] static void run_child(const std::vector<char*>& arguments,
                                     const std::vector<char*>& variables, int output,
                                     pid_t launcher);
  void join(const JoinedRank& rank, News& news);
  void read_output(News& news);
  void take_line(std::string_view line, News& news);
  void look_at_ranks(News& news);
  Evidence end_of(int status) const;

  RankSocket& socket_;
  const bool tagged_;
  pid_t starter_ = 0;
  int starter_fd_ = -1, output_ = -1;
  bool reaped_ = false, reported_ = false;
  int status_ = 0;
  LineCutter cutter_;
  std::map<int, pid_t> pids_;
  std::map<int, int> pidfds_;
  std::string host_;
  std::map<int, std::string> errors_;  // the last line of each rank that begins as errors do
  int first_gone_ = -1;
  std::optional<int> blamed_;
};

}  // namespace ashlar::launch
