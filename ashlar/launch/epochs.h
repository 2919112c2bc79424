// The lead of a launch on several machines.  The authority is RUN_DIR/launch, which all nodes
// share:
//
//   token             32 random bytes, readable by the owner alone: who may talk to the leader
//   epoch-N/leader    made by the one process that leads epoch N; names its job
//   epoch-N/address   where that leader listens (control/address.h)
//   epoch-N/beat      a counter that it raises each second
//   epoch-N/end       exit code of the run, which is over
//   nodes/N           made by the agent that has number N; names its machine
//
// The higher epoch wins: a leader that sees a newer one resigns, and the lease of the checkpoints
// (checkpoint/root/lease.h) fences the ranks that it started.  Clocks are never compared: a leader
// is taken for dead by a process that saw its counter stand for a while.
//
// Errors   kStorage; kLaunch if the token is not this user's alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/control/handshake.h"
#include "ashlar/control/hmac.h"
#include "ashlar/core/files.h"

namespace ashlar::launch {

class EpochFiles {
 public:
  EpochFiles(FileSystem& files, std::string directory)  // RUN_DIR/launch, which exists
      : files_(files), directory_(std::move(directory)) {}

  int64_t newest();  // 0: there is none
  // Makes it, for a job: agents of one job have one name for it.  False: another process has it.
  bool claim(int64_t epoch, const std::string& job);
  // For an epoch that this process leads.
  void publish(int64_t epoch, const std::string& address);
  void beat(int64_t epoch);
  void end(int64_t epoch, int exit_code);
  // For any epoch; nullopt: not there yet.
  std::optional<std::string> address_of(int64_t epoch);
  std::string job_of(int64_t epoch);   // "": not there yet
  std::string beat_of(int64_t epoch);  // "": none yet
  std::optional<int> end_of(int64_t epoch);

  int64_t last_ended();  // epoch; 0: none has
  // The number, from 1, of this machine's agent, where nothing else numbers them.
  int number_of(const std::string& machine);

  // Made from the token: the secret of an epoch's links, and the name of the socket at which the
  // agent of every node waits for its ranks (kAgentVariable).
  control::Epoch key_of(int64_t epoch, const std::string& job);
  std::string agent_socket();

 private:
  std::string path(int64_t epoch, const char* name) const;
  bool make(const std::string& file, const std::string& text);
  control::Digest from_token(std::string_view label) const;
  std::optional<std::string> text_of(int64_t epoch, const char* name);
  FileSystem& files_;
  const std::string directory_;
  int64_t beat_ = 0;
};

// When an agent may try to lead the next epoch.
class Candidacy {
 public:
  static constexpr double kUnheard_s = 5, kStood_s = 8, kPerPlace_s = 1, kAfterResigning_s = 10;
  static constexpr int kMostPlaces = 5;
  struct View {
    int64_t epoch = 0;      // the newest; 0: none
    std::string beat = {};  // its counter
    bool ended = false;     // an earlier job of this directory ended with it
    double heard_s = 0;     // when this agent last heard the leader
    int place = 0;          // of this agent among the living ones
  };
  bool may_lead(const View& view, double now);
  // Whether the counter of the last view's epoch has moved since this process first saw it.
  bool has_seen_life() const { return seen_life_; }
  void resigned() { resigned_ = true; }  // this agent's own leader did

 private:
  int64_t epoch_ = -1;
  std::string beat_;
  double stands_since_ = 0;
  bool resigned_ = false, seen_life_ = false;
};

// Whether a leader still leads.
class Tenure {
 public:
  static constexpr double kSilent_s = 20;  // the longest time without a written beat
  // The agents that the leader before heard count between two times of a lead.  They have yet to
  // come before, and whoever has not come after is lost.  A leader to whom nobody has come but its
  // own agent waits less long for the others.
  static constexpr double kAlone_s = 10, kGather_s = 20, kGathered_s = 60;
  struct View {
    int64_t newest = 0;    // epoch
    double written_s = 0;  // when the last beat was written
    int num_heard = 0;     // agents, now
    int num_recent = 0;    // agents, in the last minute
  };
  // num_before: agents that the leader before heard; 0: there was none, or nothing is known.
  explicit Tenure(int64_t epoch, int num_before = 0, double now = 0)
      : epoch_(epoch), num_before_(num_before), begun_s_(now) {}
  // A leader that hears fewer than half of its agents is on the wrong side of a broken network.
  bool holds(const View& view, double now) const {
    const double led_s = now - begun_s_;
    const double gather_s = view.num_heard <= 1 ? kAlone_s : kGather_s;
    const bool counts_before = led_s >= gather_s && led_s < kGathered_s;
    const int num_agents = std::max(view.num_recent, counts_before ? num_before_ : 0);
    return view.newest <= epoch_ && now - view.written_s < kSilent_s &&
           2 * view.num_heard >= num_agents;
  }

 private:
  int64_t epoch_;
  int num_before_;
  double begun_s_;
};

}  // namespace ashlar::launch
