// A pass over sequences that ranks share is the pass on one rank: same loss, same gradients.
#include "ashlar/parallel/context.h"

#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "context_pass.h"
#include "tests/support/malloc_count.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

constexpr int64_t kLength = 24;  // chunks of 3 (zigzag over 4 ranks) to 12 tokens

const std::vector<std::vector<std::vector<int64_t>>> kDocuments = {
    {{24}, {24}},
    {{5, 7, 1, 11}, {3, 13, 8}},
    {{6, 6, 12}, {3, 1, 2, 3, 3, 12}},            // start where chunks do
    {{5, 2, 4, 2, 4, 7}, {2, 2, 4, 2, 9, 4, 1}},  // one token before or behind
    {{23, 1}, {1, 23}}};

ModelSpec spec_of(int64_t window) {
  ModelSpec spec = nn::tiny_spec();
  spec.sliding_window = window;
  return spec;
}

using Values = std::vector<std::vector<double>>;  // by tensor
struct Outcome {
  double loss;
  Values gradients;
};

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.numel(); ++i) values.push_back(nn::Harness::get(t, i));
  return values;
}

Outcome outcome_of(const Pass& pass, double loss) {
  Outcome outcome{loss, {}};
  for (const Tensor& gradient : pass.gradients()) outcome.gradients.push_back(values_of(gradient));
  return outcome;
}

PassSpec on_one(PassSpec how) {
  how.split.num_ranks = 1;
  return how;
}

// Sums over the ranks, as every rank sees them.
Outcome shared_outcome(Pass& pass, comm::Group& ranks, const Batch& batch) {
  pass.run(batch);
  double loss = pass.loss();
  const Tensor sum{reinterpret_cast<std::byte*>(&loss), DType::kF64, Device::kCpu, {1}};
  ranks.all_reduce(sum, sum, "loss").wait();
  for (const Tensor& gradient : pass.gradients())
    ranks.all_reduce(gradient, gradient, "gradient").wait();
  return outcome_of(pass, loss);
}

// The largest difference of a tensor over its largest value, of all tensors.
double difference(const Outcome& a, const Outcome& b) {
  double worst = std::abs(a.loss - b.loss) / std::abs(a.loss);
  EXPECT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    double largest = 0, gap = 0;
    for (size_t j = 0; j < a.gradients[i].size(); ++j) {
      largest = std::max(largest, std::abs(a.gradients[i][j]));
      gap = std::max(gap, std::abs(a.gradients[i][j] - b.gradients[i][j]));
    }
    if (gap > 0) worst = std::max(worst, gap / largest);
  }
  return std::isfinite(b.loss) ? worst : INFINITY;
}

// Of all gradients as one vector, relative.
double distance(const Outcome& a, const Outcome& b) {
  double gap = 0, size = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i)
    for (size_t j = 0; j < a.gradients[i].size(); ++j) {
      gap += std::pow(a.gradients[i][j] - b.gradients[i][j], 2);
      size += std::pow(a.gradients[i][j], 2);
    }
  return std::sqrt(gap / size);
}

struct Way {
  int num_ranks;
  ContextLayout layout;
  ContextExchange kind;
};
std::string name_of(const Way& way) {
  return fmt::format("cp{}_{}_{}", way.num_ranks,
                     way.layout == ContextLayout::kZigzag ? "zigzag" : "contiguous",
                     way.kind == ContextExchange::kRing ? "ring" : "gather");
}
void PrintTo(const Way& way, std::ostream* out) {
  *out << name_of(way);
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int n : {1, 2, 3, 4})
    for (const ContextLayout layout : {ContextLayout::kContiguous, ContextLayout::kZigzag})
      for (const ContextExchange kind : {ContextExchange::kAllGather, ContextExchange::kRing})
        all.push_back({n, layout, kind});
  return all;
}

class ContextWays : public testing::TestWithParam<Way> {
 protected:
  PassSpec how_of(int64_t window, DType compute, nn::Keep keep = nn::Keep::kAll) const {
    const Way& way = GetParam();
    return {spec_of(window), compute, {way.layout, way.num_ranks, 2, kLength}, way.kind, keep};
  }
  // Every micro-batch of kDocuments on ranks and on one; one pass after the other on the same
  // buffers.
  void expect_equal(const PassSpec& how, double tolerance) const {
    Pass one(on_one(how), nullptr);
    std::vector<Outcome> want;
    for (const auto& documents : kDocuments) {
      const Batch batch = batch_of(documents, how.spec.vocab_size);
      one.run(batch);
      want.push_back(outcome_of(one, one.loss()));
    }
    Allocator allocator(Device::kCpu);
    comm::run_ranks(how.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      Pass pass(how, &ranks);
      for (size_t i = 0; i < kDocuments.size(); ++i) {
        const Outcome got =
            shared_outcome(pass, ranks, batch_of(kDocuments[i], how.spec.vocab_size));
        if (ranks.rank() > 0) continue;
        EXPECT_LE(difference(want[i], got), tolerance)
            << "documents " << i << ", window " << how.spec.sliding_window;
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Context, ContextWays, testing::ValuesIn(ways()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ContextWays, EqualOneRank) {
  for (const int64_t window : {2, 9, 20}) expect_equal(how_of(window, DType::kF64), 1e-10);
}

TEST_P(ContextWays, EqualOneRankWithRecomputation) {
  expect_equal(how_of(9, DType::kF64, nn::Keep::kBlockInput), 1e-10);
}

TEST_P(ContextWays, CloseInSinglePrecision) {
  expect_equal(how_of(9, DType::kF32), 1e-4);
}

// bf16 rounds what crosses ranks and what is merged at other places: as a whole the gradients are as
// near to those of fp64 as one rank's are.
TEST_P(ContextWays, NearInBf16) {
  const PassSpec exact = how_of(9, DType::kF64), rounded = how_of(9, DType::kBF16);
  Pass one(on_one(exact), nullptr), one_rounded(on_one(rounded), nullptr);
  for (const auto& documents : kDocuments) {
    const Batch batch = batch_of(documents, exact.spec.vocab_size);
    one.run(batch);
    one_rounded.run(batch);
    const Outcome want = outcome_of(one, one.loss());
    const double own_error = distance(want, outcome_of(one_rounded, one_rounded.loss()));
    Allocator allocator(Device::kCpu);
    comm::run_ranks(rounded.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      Pass pass(rounded, &ranks);
      const Outcome got = shared_outcome(pass, ranks, batch);
      if (ranks.rank() > 0) return;
      EXPECT_LE(distance(want, got), 1.5 * own_error);
      EXPECT_NEAR(got.loss / want.loss, 1, 0.01);
    });
  }
}

// A few hundred rows: several blocks of the packed kernels, bounded scores, full and empty masks.
TEST(Context, LongRowsInSinglePrecision) {
  for (const ContextExchange kind : {ContextExchange::kAllGather, ContextExchange::kRing}) {
    const PassSpec how{
        spec_of(100), DType::kF32, {ContextLayout::kZigzag, 2, 1, 600}, kind, nn::Keep::kAll};
    const Batch batch = batch_of({{290, 17, 293}}, how.spec.vocab_size);
    Pass one(on_one(how), nullptr);
    one.run(batch);
    const Outcome want = outcome_of(one, one.loss());
    Allocator allocator(Device::kCpu);
    comm::run_ranks(2, {}, allocator, [&](comm::Group& ranks) {
      Pass pass(how, &ranks);
      EXPECT_LE(difference(want, shared_outcome(pass, ranks, batch)), 1e-4);
    });
  }
}

TEST_P(ContextWays, TheSameBitsEveryTime) {
  const PassSpec how = how_of(9, DType::kF32);
  const Batch batch = batch_of(kDocuments[1], how.spec.vocab_size);
  std::vector<Outcome> runs;
  for (int run = 0; run < 2; ++run) {
    Allocator allocator(Device::kCpu);
    comm::run_ranks(how.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      Pass pass(how, &ranks);
      const Outcome got = shared_outcome(pass, ranks, batch);
      if (ranks.rank() == 0) runs.push_back(got);
    });
  }
  EXPECT_EQ(runs[0].loss, runs[1].loss);
  EXPECT_EQ(runs[0].gradients, runs[1].gradients);
}

class SteadyContext : public ContextWays {};
INSTANTIATE_TEST_SUITE_P(
    Context, SteadyContext,
    testing::Values(Way{2, ContextLayout::kZigzag, ContextExchange::kAllGather},
                    Way{2, ContextLayout::kContiguous, ContextExchange::kRing},
                    Way{3, ContextLayout::kContiguous, ContextExchange::kAllGather},
                    Way{3, ContextLayout::kZigzag, ContextExchange::kRing}),
    [](const auto& info) { return name_of(info.param); });

TEST_P(SteadyContext, PassesAllocateNothing) {
  using namespace ashlar::testing_support;
  if (!counts_mallocs()) GTEST_SKIP() << "sanitizers bring an allocator of their own";
  const PassSpec how = how_of(9, DType::kF64);
  std::vector<Batch> batches;
  for (const auto& documents : kDocuments)
    batches.push_back(batch_of(documents, how.spec.vocab_size));
  Allocator allocator(Device::kCpu);
  int64_t before = 0, after = -1;
  comm::run_ranks(how.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
    Pass pass(how, &ranks);
    const auto passes = [&](int num) {
      for (int i = 0; i < num; ++i) {
        pass.run(batches[size_t(i) % batches.size()]);
        // Over two passes an odd number of operations: they meet every slot of the queue.
        if (i % 2) ranks.barrier("warm").wait();
      }
    };
    passes(140);
    const int64_t allocations = pass.allocator().counts().num_allocations;
    ranks.barrier("warm").wait();
    ranks.barrier("warm").wait();
    if (ranks.rank() == 0) before = num_mallocs();
    ranks.barrier("warm").wait();
    passes(10);
    ranks.barrier("warm").wait();
    if (ranks.rank() == 0) after = num_mallocs();
    ranks.barrier("warm").wait();
    EXPECT_EQ(pass.allocator().counts().num_allocations, allocations);
  });
  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace ashlar::parallel
