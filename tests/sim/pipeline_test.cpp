// Pipelines of equal costs, held against the simulation of schedules: bit for bit.
#include <gtest/gtest.h>

#include <array>

#include "ashlar/parallel/schedule_simulation.h"
#include "ashlar/sim/program_builder.h"
#include "ashlar/sim/replay.h"
#include "tests/sim/simple_costs.h"

namespace ashlar::sim {
namespace {

using parallel::Action;
using ActionKind = Action::Kind;
using testing_support::SimpleCosts;

constexpr std::array<const char*, 4> kNames = {"forward", "backward", "inputs", "weights"};

bool is_transfer(ActionKind kind) {
  return kind >= ActionKind::kSendForward;
}

// A stage's channels are lanes of its rank, as in a run.
class PipelinePrograms {
 public:
  PipelinePrograms(const parallel::Programs& stages, parallel::Sends sends)
      : p_(int(stages.size())), sends_(sends), builder_(p_) {
    for (int stage = 0; stage < p_; ++stage) {
      for (const Action& action : stages[size_t(stage)]) add(stage, action);
      builder_.end_step(stage);
      received_.clear();
    }
  }
  RankPrograms finish() { return builder_.finish(); }

 private:
  using Pair = std::tuple<bool, int, int>;  // of a gradient, chunk, micro-batch

  void add(int stage, const Action& action) {
    if (is_transfer(action.kind)) return transfer(stage, action);
    const bool gradient = action.kind != ActionKind::kForward;
    const auto received = received_.find({gradient, action.chunk, action.micro_batch});
    if (action.kind != ActionKind::kWeights && received != received_.end())
      builder_.wait(stage, received->second.first, received->second.second);
    builder_.kernel(stage, {.op = kNames[size_t(action.kind)]});
  }

  void transfer(int stage, const Action& action) {
    const bool sends =
        action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
    const bool gradient =
        action.kind == ActionKind::kSendBackward || action.kind == ActionKind::kReceiveBackward;
    const int towards = gradient ? -1 : 1;
    const int other = (stage + (sends ? towards : -towards) + p_) % p_;
    const int from = sends ? stage : other, to = sends ? other : stage;
    const std::string name = fmt::format("{}>{} {}", from, to, gradient ? "gradients" : "outputs");
    const int lane = builder_.lane(stage, name);
    const int64_t ticket = tickets_[{stage, lane}]++;
    const TraceMessage message{other, sends, 8};
    builder_.post(stage,
                  {.op = machine::CollectiveOp::kSendReceive,
                   .lane = int16_t(lane),
                   .group = builder_.group(name, std::array{from, to})},
                  ticket, std::span(&message, 1));
    if (sends && sends_ == parallel::Sends::kWait) builder_.wait(stage, lane, ticket);
    if (!sends) received_[{gradient, action.chunk, action.micro_batch}] = {lane, ticket};
  }

  const int p_;
  const parallel::Sends sends_;
  ProgramBuilder builder_;
  std::map<std::pair<int, int>, int64_t> tickets_;
  std::map<Pair, std::pair<int, int64_t>> received_;
};

void expect_equal(const parallel::Programs& stages, const parallel::ActionTimes& times,
                  parallel::Sends sends, const std::string& name) {
  const parallel::Simulation expected = simulate(stages, times, sends);
  const RankPrograms programs = PipelinePrograms(stages, sends).finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"forward", times.forward_s},
                   {"backward", times.inputs_s + times.weights_s},
                   {"inputs", times.inputs_s},
                   {"weights", times.weights_s}};
  costs.message_s = times.transfer_s;
  const Replayed replayed = replay(programs, costs, {.keep_spans = true});
  ASSERT_EQ(replayed.problem, expected.problem) << name;
  double end_s = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<ReplaySpan> kernels;
    for (const ReplaySpan& span : replayed.spans[stage])
      if (span.kind == ReplaySpan::Kind::kKernel) kernels.push_back(span);
    size_t next = 0;
    for (size_t i = 0; i < stages[stage].size(); ++i) {
      if (is_transfer(stages[stage][i].kind)) continue;
      ASSERT_LT(next, kernels.size()) << name;
      ASSERT_EQ(kernels[next].begin_s, expected.times[stage][i].begin_s) << name;
      ASSERT_EQ(kernels[next++].end_s, expected.times[stage][i].end_s) << name;
    }
    ASSERT_EQ(next, kernels.size()) << name;
    end_s = std::max(end_s, replayed.ranks[stage].step_s);
  }
  ASSERT_EQ(end_s, expected.end_s) << name;
}

TEST(Pipeline, EqualCostsGiveTheTimesOfTheScheduleBitForBit) {
  const parallel::ActionTimes times{0.1, 0.17, 0.13, 0.03};
  for (int stages = 1; stages <= 8; ++stages)
    for (const int64_t m : {1, 2, 3, 4, 7, 8, 16, 24}) {
      const auto check = [&](Schedule schedule, int chunks) {
        const auto programs = with_transfers(parallel::compute_order(schedule, stages, chunks, m));
        const std::string name =
            fmt::format("{}, {} stages, {} micro-batches", int(schedule), stages, m);
        expect_equal(programs, times, parallel::Sends::kPost, name);
        expect_equal(programs, times, parallel::Sends::kWait, name + ", sends wait");
      };
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1f1b, Schedule::kZeroBubble})
        check(schedule, 1);
      for (int chunks = 2; chunks <= 3; ++chunks)
        if (stages > 1 && m % stages == 0) check(Schedule::kInterleaved, chunks);
    }
}

}  // namespace
}  // namespace ashlar::sim
