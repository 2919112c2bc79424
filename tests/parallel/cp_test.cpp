// A pass over sequences that ranks share is the pass on one rank: same loss, same gradients.
#include "ashlar/parallel/cp.h"

#include <gtest/gtest.h>

#include <atomic>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/malloc_count.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using ashlar::testing_support::counts_mallocs;
using ashlar::testing_support::num_mallocs;

constexpr int64_t kLength = 24;  // chunks of 3 (zigzag over 4 ranks) to 12 tokens

const std::vector<std::vector<std::vector<int64_t>>> kDocuments = {
    {{24}, {24}},
    {{5, 7, 1, 11}, {3, 13, 8}},
    {{6, 6, 12}, {3, 1, 2, 3, 3, 12}},            // start where chunks do
    {{5, 2, 4, 2, 4, 7}, {2, 2, 4, 2, 9, 4, 1}},  // one token before or behind
    {{23, 1}, {1, 23}}};

ModelKeys spec_with_window(int64_t window) {
  ModelKeys spec = nn::tiny_spec();
  spec.sliding_window = window;
  return spec;
}

struct CpOutcome {
  double loss;
  Whole gradients;
};

// How a micro-batch is shared, and how it is computed.
struct CpRun {
  Recipe recipe;
  DType compute = DType::kF64;
};

CpRun on_one(CpRun how) {
  how.recipe.parallel.cp = 1;
  return how;
}

// Results of these micro-batches, one after the other on the same buffers, from all ranks together.
std::vector<CpOutcome> outcomes(const CpRun& how, const std::vector<Batch>& batches) {
  const auto n = size_t(how.recipe.parallel.cp);
  std::vector<CpOutcome> all(batches.size());
  std::vector<std::vector<std::vector<Element>>> gradients(batches.size());
  for (auto& ranks : gradients) ranks.resize(n);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(int(n), {}, allocator, [&](comm::Group& world) {
    TinyRank rank(how.recipe, world, {.compute = how.compute});
    for (size_t i = 0; i < batches.size(); ++i) {
      const LossSum losses = rank.model.over_ranks(rank.step(batches[i]), "loss");
      if (world.rank() == 0) all[i].loss = losses.sum;
      gradients[i][size_t(world.rank())] = elements_of_gradients(rank.model);
    }
  });
  for (size_t i = 0; i < batches.size(); ++i) all[i].gradients = put_together(gradients[i]);
  return all;
}

// The largest difference of a tensor over its largest value, of all tensors.
double difference(const CpOutcome& a, const CpOutcome& b) {
  double worst = std::abs(a.loss - b.loss) / std::abs(a.loss);
  EXPECT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, values] : a.gradients) {
    const std::vector<double>& others = b.gradients.at(name);
    EXPECT_EQ(values.size(), others.size()) << name;
    double largest = 0, gap = 0;
    for (size_t j = 0; j < values.size(); ++j) {
      largest = std::max(largest, std::abs(values[j]));
      gap = std::max(gap, std::abs(values[j] - others[j]));
      if (std::isnan(others[j])) return INFINITY;
    }
    if (gap > 0) worst = std::max(worst, gap / largest);
  }
  return std::isfinite(b.loss) ? worst : INFINITY;
}

// The difference of all gradients as one vector, relative.
double distance(const CpOutcome& a, const CpOutcome& b) {
  double gap = 0, size = 0;
  for (const auto& [name, values] : a.gradients)
    for (size_t j = 0; j < values.size(); ++j) {
      gap += std::pow(values[j] - b.gradients.at(name)[j], 2);
      size += std::pow(values[j], 2);
    }
  return std::sqrt(gap / size);
}

struct Way {
  int num_ranks;
  CpLayout layout;
  CpExchange kind;
};
std::string name_of(const Way& way) {
  return fmt::format("cp{}_{}_{}", way.num_ranks,
                     way.layout == CpLayout::kZigzag ? "zigzag" : "contiguous",
                     kCpExchangeNames[size_t(way.kind)]);
}
void PrintTo(const Way& way, std::ostream* out) {
  *out << name_of(way);
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int n : {2, 3, 4})
    for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag})
      for (const CpExchange kind :
           {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll})
        if (kind != CpExchange::kAllToAll || n != 3) all.push_back({n, layout, kind});  // 4 heads
  return all;
}

// Every micro-batch of kDocuments.
std::vector<Batch> all_batches() {
  std::vector<Batch> batches;
  for (const auto& documents : kDocuments)
    batches.push_back(batch_of(documents, nn::tiny_spec().vocab_size));
  return batches;
}

class CpWays : public testing::TestWithParam<Way> {
 protected:
  CpRun how_of(int64_t window, DType compute, bool recompute = false) const {
    const Way& way = GetParam();
    CpRun how{recipe_of(spec_with_window(window), 2, kLength), compute};
    how.recipe.train.recompute = recompute;
    how.recipe.parallel.cp = way.num_ranks;
    how.recipe.parallel.cp_layout = way.layout;
    how.recipe.parallel.cp_exchange = way.kind;
    return how;
  }
  void expect_equal(const CpRun& how, double tolerance) const {
    const std::vector<Batch> batches = all_batches();
    const std::vector<CpOutcome> want = outcomes(on_one(how), batches),
                                 got = outcomes(how, batches);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_LE(difference(want[i], got[i]), tolerance)
          << "documents " << i << ", window " << how.recipe.model.sliding_window;
  }
};
INSTANTIATE_TEST_SUITE_P(Cp, CpWays, testing::ValuesIn(ways()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(CpWays, EqualOneRank) {
  for (const int64_t window : {2, 9, 20}) expect_equal(how_of(window, DType::kF64), 1e-10);
}

TEST_P(CpWays, EqualOneRankWithRecomputation) {
  expect_equal(how_of(9, DType::kF64, true), 1e-10);
}

TEST_P(CpWays, CloseInSinglePrecision) {
  expect_equal(how_of(9, DType::kF32), 1e-4);
}

// bf16 rounds what crosses ranks and what is merged at other places: as a whole the gradients are
// as near to those of fp64 as one rank's are.
TEST_P(CpWays, NearInBf16) {
  const CpRun exact = how_of(9, DType::kF64), rounded = how_of(9, DType::kBF16);
  const std::vector<Batch> batches = all_batches();
  const std::vector<CpOutcome> want = outcomes(on_one(exact), batches),
                               one_rounded = outcomes(on_one(rounded), batches),
                               got = outcomes(rounded, batches);
  for (size_t i = 0; i < batches.size(); ++i) {
    EXPECT_LE(distance(want[i], got[i]), 1.5 * distance(want[i], one_rounded[i]));
    EXPECT_NEAR(got[i].loss / want[i].loss, 1, 0.01);
  }
}

// A few hundred rows: several blocks of the packed kernels, bounded scores, full and empty masks.
TEST(Cp, LongRowsInSinglePrecision) {
  for (const CpExchange kind : {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll}) {
    CpRun how{recipe_of(spec_with_window(100), 1, 600), DType::kF32};
    how.recipe.parallel.cp = 2;
    how.recipe.parallel.cp_exchange = kind;
    const std::vector<Batch> batches = {batch_of({{290, 17, 293}}, how.recipe.model.vocab_size)};
    EXPECT_LE(difference(outcomes(on_one(how), batches)[0], outcomes(how, batches)[0]), 1e-4);
  }
}

// Several key heads on a rank, one on each, and one on two or four ranks.
TEST(CpHeads, EqualsOneRankWhateverTheHeads) {
  for (const auto& [queries, keys] : {std::pair{8, 8}, {8, 4}, {8, 2}, {4, 1}})
    for (const int num_ranks : {2, 4}) {
      CpRun how{recipe_of(spec_with_window(9), 2, kLength)};
      how.recipe.model.num_attention_heads = queries;
      how.recipe.model.num_key_value_heads = keys;
      how.recipe.parallel.cp = num_ranks;
      how.recipe.parallel.cp_exchange = CpExchange::kAllToAll;
      const std::vector<Batch> batches = {all_batches()[1]};
      EXPECT_LE(difference(outcomes(on_one(how), batches)[0], outcomes(how, batches)[0]), 1e-10)
          << queries << " query heads, " << keys << " key heads, cp " << num_ranks;
    }
}

// A token does not change a bit of what the tokens before it make.
TEST_P(CpWays, NoTokenSeesALaterOne) {
  constexpr int64_t kChanged = 13;  // the first token of row 0 that is another
  for (const DType compute : {DType::kF64, DType::kF32}) {
    const CpRun how = how_of(0, compute);
    Batch batch = all_batches()[0], other = batch;
    for (int64_t i = kChanged; i < kLength; ++i)
      other.ids[size_t(i)] = (batch.ids[size_t(i)] + 1) % int32_t(how.recipe.model.vocab_size);
    const CpSplit split{how.recipe.parallel.cp_layout, GetParam().num_ranks, 2, kLength};
    Allocator allocator(Device::kCpu);
    std::atomic<int> num_same = 0, num_changed = 0;
    comm::run_ranks(GetParam().num_ranks, {}, allocator, [&](comm::Group& world) {
      TinyRank rank(how.recipe, world, {.compute = compute});
      rank.step(batch);
      const std::vector<double> before = rank.logits();
      rank.step(other);
      const std::vector<double> after = rank.logits();
      const int64_t V = how.recipe.model.vocab_size;
      for (int64_t t = 0; t < split.local_tokens(); ++t) {
        const bool same =
            std::equal(before.begin() + t * V, before.begin() + (t + 1) * V, after.begin() + t * V);
        const int64_t row = whole_row(split, world.rank(), t);
        const bool sees = kChanged <= row && row < kLength;
        EXPECT_EQ(same, !sees) << "row " << row;
        ++(same ? num_same : num_changed);
      }
    });
    EXPECT_EQ(num_same, kLength + kChanged);
    EXPECT_EQ(num_changed, kLength - kChanged);
  }
}

TEST_P(CpWays, TheSameBitsEveryTime) {
  const CpRun how = how_of(9, DType::kF32);
  const std::vector<Batch> batches = {all_batches()[1]};
  const CpOutcome first = outcomes(how, batches)[0], second = outcomes(how, batches)[0];
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.gradients, second.gradients);
}

class SteadyCp : public CpWays {};
INSTANTIATE_TEST_SUITE_P(Cp, SteadyCp,
                         testing::Values(Way{2, CpLayout::kZigzag, CpExchange::kAllGather},
                                         Way{2, CpLayout::kContiguous, CpExchange::kRing},
                                         Way{3, CpLayout::kContiguous, CpExchange::kAllGather},
                                         Way{3, CpLayout::kZigzag, CpExchange::kRing},
                                         Way{2, CpLayout::kZigzag, CpExchange::kAllToAll},
                                         Way{4, CpLayout::kContiguous, CpExchange::kAllToAll}),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SteadyCp, PassesAllocateNothing) {
  if (!counts_mallocs()) GTEST_SKIP() << "sanitizers bring an allocator of their own";
  const CpRun how = how_of(9, DType::kF64);
  const std::vector<Batch> batches = all_batches();
  Allocator allocator(Device::kCpu);
  int64_t before = 0, after = -1;
  comm::run_ranks(GetParam().num_ranks, {}, allocator, [&](comm::Group& ranks) {
    TinyRank rank(how.recipe, ranks);
    const auto passes = [&](int num) {
      for (int i = 0; i < num; ++i) rank.step(batches[size_t(i) % batches.size()]);
    };
    passes(1);  // the other documents come where it counts
    const int64_t allocations = rank.memory().num_allocations;
    ranks.barrier("warm").wait();
    ranks.barrier("warm").wait();
    if (ranks.rank() == 0) before = num_mallocs();
    ranks.barrier("warm").wait();
    passes(10);
    ranks.barrier("warm").wait();
    if (ranks.rank() == 0) after = num_mallocs();
    ranks.barrier("warm").wait();
    EXPECT_EQ(rank.memory().num_allocations, allocations);
  });
  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace ashlar::parallel
