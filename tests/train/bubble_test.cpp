// The bubble of pipelines as they run: a recorded step of every stage has the order of the
// schedule, and its events, replayed with a fixed time for each action, leave every stage idle for
// exactly as long as the schedule's formula says.
//
// How it works.  The trace of a rank (tensor/trace.h) has its kernels, posts and waits in order.
// Consecutive kernels of a micro-batch and phase are one action, which takes the time of its kind.
// Posts of a channel take none: the k-th send and the k-th receive have met when both are posted.
// A wait ends when its operation has met.  Real times are not read: on a machine with fewer cores
// than stages they say nothing of the schedule.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>

#include "ashlar/parallel/schedule_simulation.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using parallel::Action;
using ActionKind = Action::Kind;
using Kind = TraceEvent::Kind;

struct BubbleCase {
  Schedule schedule;
  int stages, chunks;
  int64_t micro_batches;
  Overrides model;
  std::string name;
};

void PrintTo(const BubbleCase& c, std::ostream* out) {
  *out << c.name;
}

// An action of a rank that computes, or a post or wait of a channel.
struct Item {
  enum class What : uint8_t { kCompute, kSend, kReceive, kWait };
  What what;
  Action action{};                      // kCompute: what; kSend, kReceive: which transfer
  std::string channel{};                // kSend, kReceive
  std::pair<int, int64_t> operation{};  // lane and ticket, not of kCompute
};

std::optional<ActionKind> kind_of_phase(const BubbleCase& c, std::string_view phase) {
  const bool split = c.schedule == Schedule::kZeroBubble;
  if (phase == "forward") return ActionKind::kForward;
  if (phase == "loss" || phase == "backward" || phase == "recomputation")
    return split ? ActionKind::kInputs : ActionKind::kBackward;
  if (phase == "gradients of weights") return ActionKind::kWeights;
  return {};
}

// Block b of as many blocks as virtual stages is virtual stage b.
int16_t chunk_of(const BubbleCase& c, int16_t block) {
  return int16_t(c.chunks == 1 ? 0 : block / c.stages);
}

std::vector<Item> items_of(const BubbleCase& c, const Trace& trace) {
  std::vector<Item> items;
  for (const TraceEvent& e : trace.events()) {
    const std::pair<int, int64_t> operation{e.lane, e.ticket};
    if (e.kind == Kind::kKernel) {
      const auto kind = kind_of_phase(c, trace.phase(e.place));
      if (!kind) continue;
      const bool goes_on = !items.empty() && items.back().what == Item::What::kCompute &&
                           items.back().action.kind == *kind &&
                           items.back().action.micro_batch == e.place.micro_batch;
      if (!goes_on) items.push_back({Item::What::kCompute, {*kind, -1, e.place.micro_batch}});
      if (e.place.block >= 0) items.back().action.chunk = chunk_of(c, e.place.block);
    } else if (e.kind == Kind::kWait) {
      items.push_back({Item::What::kWait, {}, {}, operation});
    } else if (trace.text(e.label).starts_with("pp ")) {
      const auto messages = trace.messages(e);
      EXPECT_EQ(messages.size(), 1u);
      const bool sends = messages[0].sends, gradients = trace.text(e.label) == "pp gradients";
      const ActionKind kind =
          gradients ? (sends ? ActionKind::kSendBackward : ActionKind::kReceiveBackward)
                    : (sends ? ActionKind::kSendForward : ActionKind::kReceiveForward);
      items.push_back({sends ? Item::What::kSend : Item::What::kReceive,
                       {kind, -1, e.place.micro_batch},
                       trace.group(e.group).name,
                       operation});
    }
  }
  return items;
}

double cost_of(ActionKind kind, const parallel::ActionTimes& costs) {
  if (kind == ActionKind::kForward) return costs.forward_s;
  if (kind == ActionKind::kInputs) return costs.inputs_s;
  if (kind == ActionKind::kWeights) return costs.weights_s;
  return costs.inputs_s + costs.weights_s;
}

// Replays all ranks; the time of each that is not in an action until the last has ended.
class TimedReplay {
 public:
  TimedReplay(const std::vector<std::vector<Item>>& ranks, const parallel::ActionTimes& costs)
      : ranks_(ranks), costs_(costs), state_(ranks.size()) {}

  std::vector<double> idle_s() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r)
        while (state_[r].at < ranks_[r].size() && advance(r)) moved = true;
    }
    double end_s = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_EQ(state_[r].at, ranks_[r].size()) << "rank " << r << " waits for ever";
      end_s = std::max(end_s, state_[r].computed_until_s);
    }
    std::vector<double> idle;
    for (const Rank& rank : state_) idle.push_back(end_s - rank.busy_s);
    return idle;
  }

 private:
  struct Message {
    std::optional<double> sent_s, received_s;  // when posted
  };
  using Key = std::pair<std::string, size_t>;  // channel, k
  struct Rank {
    size_t at = 0;
    double now_s = 0, busy_s = 0, computed_until_s = 0;
    std::map<std::string, size_t> num_sent, num_received;
    std::map<std::pair<int, int64_t>, Key> operations;
  };

  bool advance(size_t r) {
    Rank& rank = state_[r];
    const Item& item = ranks_[r][rank.at];
    if (item.what == Item::What::kWait) {
      const auto found = rank.operations.find(item.operation);
      if (found != rank.operations.end()) {
        const Message& message = messages_[found->second];
        if (!message.sent_s || !message.received_s) return false;
        rank.now_s = std::max({rank.now_s, *message.sent_s, *message.received_s});
      }
    } else if (item.what == Item::What::kCompute) {
      const double cost_s = cost_of(item.action.kind, costs_);
      rank.now_s += cost_s;
      rank.busy_s += cost_s;
      rank.computed_until_s = rank.now_s;
    } else {
      const bool sends = item.what == Item::What::kSend;
      auto& counts = sends ? rank.num_sent : rank.num_received;
      const Key key{item.channel, counts[item.channel]++};
      rank.operations[item.operation] = key;
      (sends ? messages_[key].sent_s : messages_[key].received_s) = rank.now_s;
    }
    ++rank.at;
    return true;
  }

  const std::vector<std::vector<Item>>& ranks_;
  const parallel::ActionTimes costs_;
  std::vector<Rank> state_;
  std::map<Key, Message> messages_;
};

// The record that every stage made of its second step.
std::vector<std::vector<Item>> record(const BubbleCase& c) {
  Overrides keys = c.model;
  keys.insert(keys.end(),
              {fmt::format("parallel.pp={}", c.stages),
               fmt::format("parallel.schedule={}", kScheduleNames[size_t(c.schedule)]),
               fmt::format("parallel.virtual_stages={}", c.chunks),
               fmt::format("model.num_hidden_layers={}", c.chunks * c.stages),
               fmt::format("train.global_batch={}", c.micro_batches),
               fmt::format("data.num_streams={}", c.micro_batches), "train.precision=fp32"});
  const Recipe recipe = recipe_with(keys);
  std::vector<std::vector<Item>> items(size_t(c.stages));
  on_ranks(c.stages, [&](comm::Group& ranks, Allocator& allocator) {
    const RunPlan plan = plan_run(recipe, DType::kF32, c.stages, 1, ranks.rank());
    RealRank rank(recipe, DType::kF32, ranks, allocator, plan.step_memory);
    rank.step(0);
    rank.record(plan.trace);
    rank.step(1);
    rank.stop_recording();
    EXPECT_EQ(rank.trace().num_dropped(), 0);
    items[size_t(ranks.rank())] = items_of(c, rank.trace());
  });
  return items;
}

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& a : actions)
    text += fmt::format("{}:{}:{} ", int(a.kind), a.chunk, a.micro_batch);
  return text;
}

class Bubble : public testing::TestWithParam<BubbleCase> {};

TEST_P(Bubble, OfARecordedStepIsTheFormula) {
  const BubbleCase& c = GetParam();
  const std::vector<std::vector<Item>> ranks = record(c);
  const parallel::Programs order =
      parallel::compute_order(c.schedule, c.stages, c.chunks, c.micro_batches);
  const parallel::Programs lowered = parallel::with_transfers(order);
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    std::vector<Action> computed, all, expected = lowered[stage];
    for (const Item& item : ranks[stage]) {
      if (item.what == Item::What::kCompute) computed.push_back(item.action);
      if (item.what != Item::What::kWait) all.push_back(item.action);
    }
    EXPECT_EQ(text_of(computed), text_of(order[stage])) << "stage " << stage;
    // With sends and receives between; a trace does not say of which chunk they are.
    for (auto* actions : {&all, &expected})
      for (Action& action : *actions) action.chunk = 0;
    EXPECT_EQ(text_of(all), text_of(expected)) << "stage " << stage;
  }
  const parallel::ActionTimes costs;
  for (const double idle_s : TimedReplay(ranks, costs).idle_s())
    EXPECT_NEAR(idle_s, parallel::bubble_s(c.schedule, c.stages, c.micro_batches, costs), 1e-9);
}

std::vector<BubbleCase> bubble_cases() {
  const Overrides llama = {"model.layer_types=full_attention", "model.intermediate_size=40"};
  std::vector<BubbleCase> list;
  const auto add = [&](Schedule schedule, int stages, int chunks, int64_t micro_batches) {
    list.push_back({schedule, stages, chunks, micro_batches, llama,
                    fmt::format("pp{}_{}_{}_chunks_{}_micro_batches", stages,
                                kScheduleNames[size_t(schedule)], chunks, micro_batches)});
  };
  for (const int stages : {2, 4}) {
    for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1f1b, Schedule::kZeroBubble})
      for (const int64_t micro_batches : {2, 4, 8}) add(schedule, stages, 1, micro_batches);
    for (const int chunks : {2, 3})
      for (const int64_t micro_batches : {4, 8})
        add(Schedule::kInterleaved, stages, chunks, micro_batches);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Schedules, Bubble, testing::ValuesIn(bubble_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ashlar::train
