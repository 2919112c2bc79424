// How it works.  Stages take turns, and each runs as far as it can, until none can.  Times do not
// depend on the turns, because the order in the programs alone decides which messages meet.
//
//   arrival   the time at which a pair's input, or the gradient of its output, arrives: set by a
//             channel if programs have transfers, else by the neighbour's action
//   channel   the sends and receives that were posted; the first `num_met` of each have met
#include "ashlar/parallel/schedule_simulation.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "ashlar/core/error.h"

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;

std::string name_of(const Action& action) {
  constexpr const char* kNames[] = {"forward",       "backward",        "inputs",
                                    "weights",       "send_forward",    "receive_forward",
                                    "send_backward", "receive_backward"};
  return fmt::format("{} of chunk {}, micro-batch {}", kNames[int(action.kind)], action.chunk,
                     action.micro_batch);
}

class Run {
 public:
  Run(const Programs& programs, const ActionTimes& times, Sends sends)
      : programs_(programs), times_(times), sends_(sends), p_(int(programs.size())) {
    for (const auto& program : programs) {
      result_.times.emplace_back(program.size());
      for (const Action& action : program) {
        num_chunks_ = std::max(num_chunks_, action.chunk + 1);
        transfers_ |= is_transfer(action.kind);
      }
    }
  }

  Simulation run() {
    for (bool moved = true; moved && result_.problem.empty();) {
      moved = false;
      for (int stage = 0; stage < p_; ++stage)
        while (result_.problem.empty() && advance(stage)) moved = true;
    }
    if (result_.problem.empty()) result_.problem = waiting();
    for (int stage = 0; stage < p_; ++stage)
      result_.end_s = std::max(result_.end_s, stages_[size_t(stage)].now_s);
    if (result_.end_s > 0) result_.bubble_share = 1 - busy_s_ / (result_.end_s * p_);
    return std::move(result_);
  }

 private:
  struct Stage {
    size_t at = 0;
    double now_s = 0;
    bool posted = false;  // the send at `at` is posted, and the stage waits for it
  };
  struct Post {
    int stage;
    size_t index;
  };
  struct Channel {
    std::vector<Post> sends, receives;
    size_t num_met = 0;
    double free_s = 0;
  };
  // Key: virtual stage, micro-batch, whether it is a gradient.
  using Arrival = std::tuple<int, int, bool>;

  static bool is_transfer(Kind kind) { return kind >= Kind::kSendForward; }
  static bool is_send(Kind kind) {
    return kind == Kind::kSendForward || kind == Kind::kSendBackward;
  }
  static bool of_gradient(Kind kind) {
    return kind == Kind::kSendBackward || kind == Kind::kReceiveBackward;
  }
  const Action& action_of(const Post& post) const {
    return programs_[size_t(post.stage)][post.index];
  }
  Interval& time_of(const Post& post) { return result_.times[size_t(post.stage)][post.index]; }
  int virtual_stage(int stage, const Action& action) const { return action.chunk * p_ + stage; }

  // Runs a stage's next action; false if it has none or must wait.
  bool advance(int stage) {
    Stage& here = stages_[size_t(stage)];
    if (here.at == programs_[size_t(stage)].size()) return false;
    const Post post{stage, here.at};
    const Action& action = action_of(post);
    const bool goes_on = is_transfer(action.kind) ? transfer(post) : compute(post);
    if (goes_on) ++here.at;
    return goes_on;
  }

  bool compute(const Post& post) {
    const Action& action = action_of(post);
    const int n = virtual_stage(post.stage, action);
    Stage& here = stages_[size_t(post.stage)];
    double begin_s = here.now_s;
    const bool forward = action.kind == Kind::kForward;
    const bool waits = action.kind == Kind::kWeights ? false
                       : forward                     ? n > 0
                                                     : n < num_chunks_ * p_ - 1;
    if (!forward && !ended_.contains({n, action.micro_batch, Kind::kForward})) return false;
    if (action.kind == Kind::kWeights && !ended_.contains({n, action.micro_batch, Kind::kInputs}))
      return false;
    if (waits) {
      const auto found = arrivals_.find({n, action.micro_batch, !forward});
      if (found == arrivals_.end()) return false;
      begin_s = std::max(begin_s, found->second);
    }
    const double cost_s = forward                         ? times_.forward_s
                          : action.kind == Kind::kInputs  ? times_.inputs_s
                          : action.kind == Kind::kWeights ? times_.weights_s
                                                          : times_.inputs_s + times_.weights_s;
    here.now_s = begin_s + cost_s;
    busy_s_ += cost_s;
    time_of(post) = {begin_s, here.now_s};
    ended_.insert({n, action.micro_batch, action.kind});
    if (!transfers_ && action.kind != Kind::kWeights)
      arrivals_[{n + (forward ? 1 : -1), action.micro_batch, !forward}] = here.now_s;
    return true;
  }

  bool transfer(const Post& post) {
    const Action& action = action_of(post);
    const bool sends = is_send(action.kind), gradient = of_gradient(action.kind);
    const int to_end = gradient ? -1 : 1;  // the direction of a message
    const int from = sends ? post.stage : (post.stage - to_end + p_) % p_;
    Channel& channel = channels_[{from, gradient}];
    Stage& here = stages_[size_t(post.stage)];
    if (!here.posted) {
      (sends ? channel.sends : channel.receives).push_back(post);
      time_of(post).begin_s = here.now_s;
      meet(channel);
    }
    if (!sends || sends_ == Sends::kPost) return true;
    // Waits until its last send is received.
    here.posted = channel.num_met < channel.sends.size();
    if (here.posted) return false;
    here.now_s = std::max(here.now_s, time_of(post).end_s);
    return true;
  }

  void meet(Channel& channel) {
    for (; channel.num_met < std::min(channel.sends.size(), channel.receives.size());
         ++channel.num_met) {
      const Post& send = channel.sends[channel.num_met];
      const Post& receive = channel.receives[channel.num_met];
      const Action &sent = action_of(send), &expected = action_of(receive);
      const bool gradient = of_gradient(sent.kind);
      const int n = virtual_stage(receive.stage, expected);
      if (virtual_stage(send.stage, sent) + (gradient ? -1 : 1) != n ||
          sent.micro_batch != expected.micro_batch) {
        result_.problem = fmt::format("stage {}: {} meets stage {}: {}", send.stage, name_of(sent),
                                      receive.stage, name_of(expected));
        return;
      }
      const double begin_s =
          std::max({time_of(send).begin_s, time_of(receive).begin_s, channel.free_s});
      channel.free_s = begin_s + times_.transfer_s;
      time_of(send).end_s = time_of(receive).end_s = channel.free_s;
      arrivals_[{n, expected.micro_batch, gradient}] = channel.free_s;
    }
  }

  std::string waiting() const {
    std::string text;
    for (int stage = 0; stage < p_; ++stage) {
      const size_t at = stages_[size_t(stage)].at;
      if (at < programs_[size_t(stage)].size())
        text += fmt::format("{}stage {} waits in {}", text.empty() ? "" : "; ", stage,
                            name_of(programs_[size_t(stage)][at]));
    }
    return text;
  }

  const Programs& programs_;
  const ActionTimes times_;
  const Sends sends_;
  const int p_;
  int num_chunks_ = 1;
  bool transfers_ = false;
  std::vector<Stage> stages_{size_t(p_)};
  // By the stage that sends, and whether it sends gradients.
  std::map<std::pair<int, bool>, Channel> channels_;
  std::map<Arrival, double> arrivals_;
  std::set<std::tuple<int, int, Kind>> ended_;  // virtual stage, micro-batch
  double busy_s_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Programs& programs, const ActionTimes& times, Sends sends) {
  return Run(programs, times, sends).run();
}

double bubble_s(Schedule schedule, int num_stages, int64_t micro_batches,
                const ActionTimes& times) {
  const double forward_s = times.forward_s, inputs_s = times.inputs_s, weights_s = times.weights_s;
  const int64_t behind = num_stages - 1;
  if (schedule != Schedule::kZeroBubble) return double(behind) * (forward_s + inputs_s + weights_s);
  const int64_t lacking = std::max<int64_t>(0, num_stages - micro_batches);
  return double(behind) * (forward_s + inputs_s - weights_s) + double(lacking) * forward_s;
}

}  // namespace ashlar::parallel
