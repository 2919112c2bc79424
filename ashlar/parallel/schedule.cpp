// How it works.  A schedule is two numbers for each stage: the number of forwards that come first,
// and the number of backwards by which the weights' part is late.  The k-th forward is of the same
// pair on every stage (pair_of), and so is the k-th backward, so neighbours agree on the order of
// their messages without communicating.
//
// with_transfers walks over the actions of a stage.  An Inbound is a channel that ends here: its
// receives in the order in which the neighbour sends; the first `posted` of them are in the
// program, and the first `read` have been read.  The simulation runs the result before it is
// returned, in the strictest way: every send waits until it is received.
#include "ashlar/parallel/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "ashlar/core/error.h"
#include "ashlar/parallel/schedule_simulation.h"

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;

void check(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches) {
  ASHLAR_REQUIRE(num_stages >= 1 && num_chunks >= 1 && micro_batches >= 1, kConfig,
                 "a pipeline of {} stages with {} virtual stages each and {} micro-batches; "
                 "expected 1 or more of each",
                 num_stages, num_chunks, micro_batches);
  if (schedule != Schedule::kInterleaved) {
    ASHLAR_REQUIRE(num_chunks == 1, kConfig,
                   "{} virtual stages on each stage, but only the schedule interleaved runs more "
                   "than 1; choose it, or 1",
                   num_chunks);
    return;
  }
  ASHLAR_REQUIRE(num_chunks >= 2 && num_stages >= 2, kConfig,
                 "the schedule is interleaved, but there are {} virtual stages on each of {} "
                 "stages; it takes 2 or more of each: choose 1f1b",
                 num_chunks, num_stages);
  const int64_t below = micro_batches / num_stages * num_stages;
  ASHLAR_REQUIRE(below == micro_batches, kConfig,
                 "the schedule is interleaved with {} micro-batches on {} stages; it takes a "
                 "multiple of the stages: choose {}{}",
                 micro_batches, num_stages, below == 0 ? "" : fmt::format("{} or ", below),
                 below + num_stages);
}

// The pair of the k-th forward or backward: p micro-batches run through a chunk, then the same ones
// through the next, and after the last chunk come the next p micro-batches.
Action pair_of(Kind kind, int64_t k, int num_stages, int num_chunks) {
  const int64_t in_round = k % (num_stages * num_chunks), round = k / (num_stages * num_chunks);
  const int64_t chunk = in_round / num_stages;
  return {kind, int16_t(kind == Kind::kForward ? chunk : num_chunks - 1 - chunk),
          int32_t(round * num_stages + in_round % num_stages)};
}

int64_t num_first_forwards(Schedule schedule, int stage, int num_stages, int num_chunks,
                           int64_t num_pairs) {
  const int64_t behind = num_stages - stage - 1;
  if (schedule == Schedule::kGpipe) return num_pairs;
  if (schedule == Schedule::kInterleaved) return 2 * behind + (num_chunks - 1) * num_stages;
  return behind;
}

bool is_forward(const Action& action) {
  return action.kind == Kind::kForward;
}
bool makes_gradient(const Action& action) {  // that of the chunk's input
  return action.kind == Kind::kBackward || action.kind == Kind::kInputs;
}

using Pair = std::pair<int, int>;  // chunk, micro-batch
Pair pair(const Action& action) {
  return {action.chunk, action.micro_batch};
}

class Lowering {
 public:
  explicit Lowering(const Programs& programs) : programs_(programs), p_(int(programs.size())) {
    for (const Action& action : programs[0]) num_chunks_ = std::max(num_chunks_, action.chunk + 1);
  }

  std::vector<Action> stage(int stage) const {
    Inbound activations = arriving(stage, true), gradients = arriving(stage, false);
    std::vector<Action> out;
    std::set<Pair> forwarded;
    for (const Action& action : programs_[size_t(stage)]) {
      // Inputs take slots, so a forward needs one more, which the backward before it has freed.
      activations.post(
          is_forward(action), action, [&](const Action&) { return is_forward(action); }, out);
      gradients.post(
          makes_gradient(action), action,
          [&](const Action& receive) { return forwarded.contains(pair(receive)); }, out);
      out.push_back(action);
      const int virtual_stage = action.chunk * p_ + stage;
      if (is_forward(action)) forwarded.insert(pair(action));
      if (is_forward(action) && virtual_stage < num_chunks_ * p_ - 1)
        out.push_back({Kind::kSendForward, action.chunk, action.micro_batch});
      if (makes_gradient(action) && virtual_stage > 0)
        out.push_back({Kind::kSendBackward, action.chunk, action.micro_batch});
    }
    return out;
  }

 private:
  struct Inbound {
    std::vector<Action> receives;
    std::map<Pair, int64_t> index_of;  // into receives
    int64_t posted = 0, read = 0;

    // Posts, before an action, the receive that it reads and the next one, if they may come yet.
    void post(bool reads, const Action& action, function_ref<bool(const Action&)> may_come,
              std::vector<Action>& out) {
      const auto found = index_of.find(pair(action));
      const int64_t needed = reads && found != index_of.end() ? found->second + 1 : 0;
      if (needed > 0) ++read;
      for (; posted < std::ssize(receives); ++posted) {
        const Action& receive = receives[size_t(posted)];
        if (posted >= needed && (posted > read || !may_come(receive))) break;
        out.push_back(receive);
      }
    }
  };

  // The receives of a channel that ends at this stage, in the order of the neighbour's sends.
  Inbound arriving(int stage, bool activations) const {
    Inbound channel;
    if (p_ == 1) return channel;
    const int from = (stage + (activations ? p_ - 1 : 1)) % p_;
    for (const Action& action : programs_[size_t(from)]) {
      if (activations ? !is_forward(action) : !makes_gradient(action)) continue;
      const int there = action.chunk * p_ + from, here = there + (activations ? 1 : -1);
      if (here < 0 || here == num_chunks_ * p_) continue;
      channel.receives.push_back({activations ? Kind::kReceiveForward : Kind::kReceiveBackward,
                                  int16_t(here / p_), action.micro_batch});
      channel.index_of[pair(channel.receives.back())] = std::ssize(channel.receives) - 1;
    }
    return channel;
  }

  const Programs& programs_;
  const int p_;
  int num_chunks_ = 1;
};

}  // namespace

Programs compute_order(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches) {
  check(schedule, num_stages, num_chunks, micro_batches);
  const bool split = schedule == Schedule::kZeroBubble;
  const int64_t num_pairs = micro_batches * num_chunks;
  Programs programs{size_t(num_stages)};
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto add = [&](Kind kind, int64_t k) {
      if (k < num_pairs)
        programs[size_t(stage)].push_back(pair_of(kind, k, num_stages, num_chunks));
    };
    const int64_t first =
        std::min(num_pairs, num_first_forwards(schedule, stage, num_stages, num_chunks, num_pairs));
    for (int64_t k = 0; k < first; ++k) add(Kind::kForward, k);
    for (int64_t k = 0; k < num_pairs; ++k) {
      add(Kind::kForward, first + k);
      add(split ? Kind::kInputs : Kind::kBackward, k);
      if (split && k >= stage) add(Kind::kWeights, k - stage);
    }
    if (!split) continue;
    for (int64_t k = std::max<int64_t>(0, num_pairs - stage); k < num_pairs; ++k)
      add(Kind::kWeights, k);
  }
  return programs;
}

Programs with_transfers(const Programs& programs) {
  const Lowering lowering(programs);
  Programs lowered;
  for (int stage = 0; stage < int(programs.size()); ++stage)
    lowered.push_back(lowering.stage(stage));
  ASHLAR_ASSERT(simulate(lowered, {}, Sends::kWait).problem.empty());
  return lowered;
}

PairSlots slots_of(std::span<const Action> program) {
  std::map<Pair, size_t> last;
  for (size_t i = 0; i < program.size(); ++i) last[pair(program[i])] = i;
  PairSlots slots;
  std::map<Pair, int> taken;
  std::set<int> free;
  for (size_t i = 0; i < program.size(); ++i) {
    const Pair here = pair(program[i]);
    if (!taken.contains(here)) {
      if (free.empty()) free.insert(slots.count++);
      taken[here] = free.extract(free.begin()).value();
    }
    slots.of.push_back(taken[here]);
    if (last[here] == i) free.insert(taken[here]);
  }
  return slots;
}

int num_slots(std::span<const Action> program) {
  return slots_of(program).count;
}

}  // namespace ashlar::parallel
