// The state of a replay (replay.h).  replay.cpp runs ranks and lanes, replay_operations.cpp what
// operations do once their ranks have come.
//
// How it works.  Time advances from one planned moment to the next: the end of flow sets, or of
// latencies.  A moment has a list of what happens then, in the order in which it was planned; what
// that sets in motion at the same time goes through the list `ready_`, first in, first out.  A set
// whose rate changes is planned anew, and its earlier plans are stale, which its version shows.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "ashlar/sim/replay.h"

namespace ashlar::sim {

class Replayer {
 public:
  Replayer(const RankPrograms& programs, Costs& costs, const ReplayOptions& options);
  Replayed run();

 private:
  struct Then {
    enum class Kind : uint8_t {
      kAdvance,      // rank a
      kStartLane,    // lane b of rank a
      kKernel,       // of rank a has ended
      kKernels,      // that rank a ran alone have ended
      kRead,         // of rank a has ended
      kLatency,      // of a part of meeting a has passed
      kLinks,        // of meeting a are done
      kWoken,        // member b of meeting a has a core
      kCore,         // member b of meeting a is done
      kMessage,      // a's latency has passed
      kMessageCore,  // message a has a core
      kMessageDone,  // message a has arrived
    };
    Kind kind = Kind::kAdvance;
    int32_t a = 0, b = 0;
  };
  struct Planned {
    Then then;
    int32_t set = -1;  // whose end it is; -1: of a latency
    int64_t version = 0;
  };
  struct Moment {
    double at_s = 0;
    int64_t order = 0;
    int32_t list = 0;  // in lists_
    bool operator>(const Moment& other) const {
      return std::tie(at_s, order) > std::tie(other.at_s, other.order);
    }
  };

  enum class Block : uint8_t { kNone, kKernel, kPost, kWait, kStall };
  struct Lane {
    int64_t posted = 0, ended = 0;  // operations, over all repeats
    bool busy = false;              // with operation number `ended`
    double began_s = 0, met_s = 0;
    int32_t open_messages = 0, moving = 0;
    std::deque<int32_t> to_receive;  // messages that want the lane's thread; the first has it
    double moved_s = 0, moving_since_s = 0;
  };
  struct Rank {
    size_t at = 0;
    int repeat = 0;
    Block block = Block::kNone;
    int16_t lane = -1;      // of a wait or a post
    int64_t waits_for = 0;  // operation of the lane
    double since_s = 0, moved_before_s = 0;
    int32_t kernel_set = -1, num_moving = 0;
    bool reading = false, stalls_after_read = false;
    double step_began_s = 0;
    RankShare share;  // of the present step
    std::vector<double> step_ends_s;
    std::vector<Lane> lanes;
  };
  struct Meeting {
    int32_t group = -1;
    int64_t ordinal = 0;
    int32_t num_come = 0, open = 0;
    size_t part = 0;
    std::vector<OperationPart> parts;
    std::vector<int32_t> operations;  // by member; -1: has not come
  };
  struct MessageEnd {
    int32_t rank = -1;
    int16_t lane = -1;
    int64_t bytes = 0;
  };
  struct Channel {
    std::vector<MessageEnd> waiting;  // of one kind: what meets is taken out
    bool are_sends = false;
  };
  struct Message {
    MessageEnd from, to;
    OperationPart cost;
  };

  // --- replay.cpp ---
  void plan(double at_s, const Planned& planned);
  void start_set(double work, double limit, std::span<const ResourceUse> uses, const Then& then);
  void plan_sets();
  void run_ready();
  void act(const Then& then);
  void advance(int rank);
  bool step_through(int rank);  // one event; false if the rank is blocked or done
  void run_kernel(int rank, const ProgramEvent& event);
  bool run_alone(int rank);
  bool post(int rank, const ProgramEvent& event);
  bool wait(int rank, const ProgramEvent& event);
  bool end_step(int rank);
  void unblock(int rank);
  void begin_read(int rank);
  void keep(int rank, const ReplaySpan& span);
  double moved_s(const Lane& lane) const {
    return lane.moved_s + (lane.moving > 0 ? now_s_ - lane.moving_since_s : 0);
  }
  const RankOperation& operation_of(int rank, int lane) const;  // that the lane is busy with
  int32_t operation_index(int rank, int lane) const;
  std::string stuck() const;
  std::string describe_stuck(int rank) const;
  Replayed result();

  // --- replay_operations.cpp ---
  void start_lane(int rank, int lane);
  void end_operation(int rank, int lane);
  void set_moving(int rank, int lane, int by);
  void come(int rank, int lane);
  void begin_part(int meeting);
  void start_part(int meeting);
  void start_core(int meeting, int member);
  void end_part_of(int meeting);
  void end_member(int meeting, int member);
  void release(int meeting);
  bool agree(const Meeting& meeting);
  void begin_messages(int rank, int lane);
  void meet(int group, int from, int to, const MessageEnd& end, bool sends);
  void start_message(int from, int to, const MessageEnd& sender, const MessageEnd& receiver);
  void move(int message);
  void receive(int message);
  void end_message(int message);
  int new_meeting(int group, int64_t ordinal);

  const RankPrograms& programs_;
  Costs& costs_;
  const ReplayOptions options_;
  FlowSets sets_;
  std::vector<Then> then_of_set_;
  double now_s_ = 0;
  int64_t order_ = 0;
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> moments_;
  std::vector<Moment> recent_;  // the last few that were planned
  std::vector<std::vector<Planned>> lists_;
  std::vector<int32_t> free_lists_;
  std::deque<Then> ready_;
  std::vector<Rank> ranks_;
  std::string problem_;

  std::vector<Meeting> meetings_;
  std::vector<int32_t> free_meetings_;
  // By group: how many collectives each member has begun, and the meetings that are not complete.
  std::vector<std::vector<int64_t>> num_begun_;
  std::vector<std::map<int64_t, int32_t>> open_meetings_;
  std::unordered_map<uint64_t, Channel> channels_;  // by group, from, to
  std::vector<Message> messages_;
  std::vector<int32_t> free_messages_;
  std::vector<std::vector<ReplaySpan>> spans_;
};

}  // namespace ashlar::sim
