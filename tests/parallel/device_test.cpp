// A second device behind the contracts of kernels: one whose functions count their calls and pass
// them on to the CPU's.
#include <gtest/gtest.h>

#include <utility>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/kernels/ops.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

template <auto kOp, typename Function>
struct CountedOp;
template <auto kOp, typename Result, typename... Args>
struct CountedOp<kOp, Result (*)(Args...)> {
  static inline int64_t calls = 0;
  static Result call(Args... args) {
    ++calls;
    return (kernels::cpu::kOps.*kOp)(std::forward<Args>(args)...);
  }
};

#define ASHLAR_COUNTED(name) CountedOp<&kernels::Ops::name, decltype(kernels::Ops::name)>
constexpr kernels::Ops kCountingOps = {
#define ASHLAR_COUNTED_FUNCTION(name, ...) .name = ASHLAR_COUNTED(name)::call,
    ASHLAR_OPS(ASHLAR_COUNTED_FUNCTION, ASHLAR_COUNTED_FUNCTION)};

// By the name under which a contract records the call.
std::map<std::string, int64_t, std::less<>> calls_of_ops() {
  std::map<std::string, int64_t, std::less<>> calls;
  const auto add = [&](std::string name, int64_t count) {
    for (const char* overloaded : {"upload", "download"})
      if (name.starts_with(overloaded)) name = overloaded;
    calls[name] += count;
  };
#define ASHLAR_COUNTED_CALLS(name, ...) add(#name, ASHLAR_COUNTED(name)::calls);
  ASHLAR_OPS(ASHLAR_COUNTED_CALLS, ASHLAR_COUNTED_CALLS)
  return calls;
}

// Every kernel that a step records is a call of the device's function.
void expect_all_calls(TinyRank& rank, const Batch& batch) {
  const auto before = calls_of_ops();
  Trace& trace = *rank.ctx.trace;
  trace.start();
  rank.step(batch);
  trace.stop();
  std::map<std::string_view, int64_t> recorded;
  for (const TraceEvent& event : trace.events())
    if (event.kind == TraceEvent::Kind::kKernel) ++recorded[trace.text(event.name)];
  const auto after = calls_of_ops();
  EXPECT_GE(recorded.size(), 20u);
  for (const auto& [name, count] : recorded) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_EQ(after.find(name)->second - before.find(name)->second, count) << name;
  }
}

TEST(Device, AStepCallsItsFunctionsAlone) {
  const Recipe recipe = recipe_of(spec_with_heads(4, 2), 2, 16);
  const Batch batch = batch_of({{16}, {5, 11}}, recipe.model.vocab_size);
  TinyRank counting(recipe, {.ops = &kCountingOps, .traced = true});
  expect_all_calls(counting, batch);
  TinyRank plain(recipe);
  plain.step(batch);
  EXPECT_EQ(whole_gradients(counting.model), whole_gradients(plain.model));
}

// Gathers of weights and sums of gradients too, which have contexts of their own.
TEST(Device, AShardedStepCallsItsFunctionsAlone) {
  Recipe recipe = recipe_of(spec_with_heads(4, 2), 2, 16);
  recipe.parallel.dp = 2, recipe.parallel.zero = 3;
  recipe.train.global_batch = 4;
  const Batch batch = batch_of({{16}, {16}}, recipe.model.vocab_size);
  Allocator meta(Device::kMeta);
  comm::RecordingWorld world(1, 2, {}, meta);
  TinyRank rank(
      recipe, world.group(),
      {.compute = DType::kBF16, .device = Device::kMeta, .ops = &kCountingOps, .traced = true});
  expect_all_calls(rank, batch);
}

}  // namespace
}  // namespace ashlar::parallel
