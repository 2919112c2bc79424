// Tensor-parallel ranks give the loss and every gradient of one rank, and say to each other what
// the formulas say.

#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/malloc_count.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using ashlar::testing_support::counts_mallocs;
using ashlar::testing_support::num_mallocs;

constexpr int64_t kTpTokens = 24;
constexpr double kSkipBias = 0.03;  // some tokens are skipped

struct TpCase {
  std::string name;
  int tp;
  ModelKeys whole;
  bool sequence_parallel = false;
  bool recompute = false;
  DType compute = DType::kF64;
  int cp = 1;
  CpExchange exchange = CpExchange::kAllGather;
};

void PrintTo(const TpCase& c, std::ostream* out) {
  *out << c.name;
}

Recipe recipe_on_ranks(const TpCase& c) {
  Recipe recipe = recipe_of(c.whole, 1, kTpTokens);
  recipe.train.recompute = c.recompute;
  recipe.parallel.tp = c.tp;
  recipe.parallel.cp = c.cp;
  recipe.parallel.cp_exchange = c.exchange;
  recipe.parallel.sequence_parallel = c.sequence_parallel;
  return recipe;
}

Recipe recipe_on_one_rank(const TpCase& c) {
  Recipe recipe = recipe_on_ranks(c);
  recipe.parallel = recipe_of(c.whole, 1, kTpTokens).parallel;
  return recipe;
}

// Whole documents; without context parallelism one of them in two pieces, the later one first.
Batch tp_batch_of(const TpCase& c) {
  Batch batch;
  for (int64_t t = 0; t < kTpTokens; ++t) {
    batch.ids.push_back(int32_t((7 * t + 3) % 11));
    batch.targets.push_back(t % 6 == 4 ? -1 : int32_t(t % 11));
  }
  if (c.cp > 1)
    batch.segments = {{0, 9, 0, 3}, {9, 15, 0, 1}};
  else
    batch.segments = {{0, 5, 0, 3}, {5, 7, 4, 1}, {12, 4, 0, 1}, {16, 8, 0, 2}};
  return batch;
}

void let_some_be_skipped(const TpCase& c, const TinyRank& rank) {
  if (c.whole.skip_output == SkipOutput::kIdentity && !rank.ctx.meta())
    for (const Piece& bias : rank.model.buffers()) set(bias.data, bias.data.numel() - 1, kSkipBias);
}

struct TpOutcome {
  double loss = 0;
  Whole gradients;
};

TpOutcome on_one_rank(const TpCase& c) {
  TinyRank rank(recipe_on_one_rank(c), {.compute = c.compute});
  let_some_be_skipped(c, rank);
  TpOutcome outcome;
  outcome.loss = rank.step(tp_batch_of(c)).sum;
  outcome.gradients = whole_gradients(rank.model);
  int64_t skipped = 0, most = 0;
  for (const Tensor& tensor : rank.model.loads()) {
    const std::span<const int64_t> loads = tensor.span<const int64_t>();
    skipped += loads.back();
    most = std::max(most, *std::max_element(loads.begin(), loads.end() - 1));
  }
  EXPECT_GT(most, kTpTokens / c.whole.num_experts + 1) << "the load is even";
  EXPECT_EQ(skipped > 0, c.whole.skip_output == SkipOutput::kIdentity);
  return outcome;
}

// On cp x tp ranks.
TpOutcome on_ranks(const TpCase& c) {
  const auto n = static_cast<size_t>(c.cp * c.tp);
  std::vector<std::vector<Element>> gradients(n);
  std::vector<double> losses(n);
  const Batch batch = tp_batch_of(c);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(int(n), {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                  [&](comm::Group& world) {
                    TinyRank rank(recipe_on_ranks(c), world, {.compute = c.compute});
                    let_some_be_skipped(c, rank);
                    rank.step(batch);  // leaves gradients that the next one must not keep
                    losses[size_t(world.rank())] = rank.step(batch).sum;
                    gradients[size_t(world.rank())] = elements_of_gradients(rank.model);
                  });
  TpOutcome outcome;
  for (size_t r = 0; r < n; ++r) {
    if (c.sequence_parallel || r % size_t(c.tp) == 0)
      outcome.loss += losses[r];
    else
      EXPECT_EQ(losses[r], losses[r / size_t(c.tp) * size_t(c.tp)]);
  }
  outcome.gradients = put_together(gradients);
  return outcome;
}

void expect_near(const TpOutcome& got, const TpOutcome& want, double tolerance) {
  EXPECT_NEAR(got.loss / want.loss, 1, tolerance);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, values] : want.gradients) {
    const std::vector<double>& others = got.gradients.at(name);
    ASSERT_EQ(others.size(), values.size()) << name;
    double largest = 0, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(others[i] - values[i]));
      ASSERT_FALSE(std::isnan(others[i])) << name << " " << i << " is held by nobody";
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(difference, tolerance * largest) << name;
  }
}

std::vector<TpCase> tp_cases() {
  std::vector<TpCase> list;
  struct Mesh {
    int tp;
    int64_t heads, keys;
  };
  for (const Mesh& m : {Mesh{2, 4, 2}, Mesh{2, 8, 4}, Mesh{3, 3, 3}, Mesh{3, 6, 3}, Mesh{4, 8, 2},
                        Mesh{4, 4, 1}, Mesh{8, 8, 4}})
    for (const bool sharded : {false, true})
      for (const bool identity : {false, true}) {
        TpCase c{
            fmt::format("tp{}_heads{}_keys{}{}{}", m.tp, m.heads, m.keys,
                        sharded ? "_sequence_parallel" : "", identity ? "_skip_recompute" : ""),
            m.tp, spec_with_heads(m.heads, m.keys), sharded};
        if (identity) {
          c.whole.skip_output = SkipOutput::kIdentity;
          c.recompute = true;
        }
        list.push_back(c);
      }
  return list;
}

std::string name_of(const testing::TestParamInfo<TpCase>& info) {
  return info.param.name;
}

class TpRanks : public testing::TestWithParam<TpCase> {};
INSTANTIATE_TEST_SUITE_P(Tp, TpRanks, testing::ValuesIn(tp_cases()), name_of);

TEST_P(TpRanks, EqualOneRank) {
  expect_near(on_ranks(GetParam()), on_one_rank(GetParam()), 1e-10);
}

TEST(TpRanks, EqualOneRankInFp32AndAlmostInBf16) {
  for (const bool sharded : {false, true}) {
    TpCase c{"", 4, spec_with_heads(8, 2), sharded, false, DType::kF32};
    expect_near(on_ranks(c), on_one_rank(c), 2e-4);
    c.compute = DType::kBF16;
    EXPECT_NEAR(on_ranks(c).loss / on_one_rank(c).loss, 1, 1e-2);
  }
}

TEST(TpRanks, AndContextRanksEqualOneRank) {
  for (const CpExchange exchange :
       {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll})
    for (const bool sharded : {false, true})
      for (const int64_t keys : {1, 2, 4}) {
        const TpCase c{"", 2, spec_with_heads(4, keys), sharded, false, DType::kF64, 2, exchange};
        SCOPED_TRACE(fmt::format("keys {} sharded {} {}", keys, sharded,
                                 kCpExchangeNames[size_t(exchange)]));
        expect_near(on_ranks(c), on_one_rank(c), 1e-10);
      }
}

using Rows = std::map<std::string, comm::TrafficRow>;

// Operations of one rank, after the formulas of docs/parallel/tp.md.
class ExpectedUse {
 public:
  ExpectedUse(int n, int r) : n_(n), r_(r) {}
  void add(comm::Op op, const std::string& label, int64_t launches, int64_t numel, int64_t width) {
    const int64_t S = numel * width, c = (numel * (r_ + 1) / n_ - numel * r_ / n_) * width;
    comm::TrafficRow row{op, label, launches};
    row.sent_bytes = row.received_bytes = S + (n_ - 2) * c;
    if (op == comm::Op::kAllGather) row.sent_bytes = (n_ - 1) * c, row.received_bytes = S - c;
    if (op == comm::Op::kReduceScatter) row.sent_bytes = S - c, row.received_bytes = (n_ - 1) * c;
    row.sent_bytes *= launches;
    row.received_bytes *= launches;
    rows_[key(row)] = row;
  }
  void check(const comm::Group& group) const {
    Rows got;
    for (const comm::TrafficRow& row : group.traffic()) got[key(row)] = row;
    for (const auto& [name, row] : rows_) {
      EXPECT_EQ(got[name].launches, row.launches) << name;
      EXPECT_EQ(got[name].sent_bytes, row.sent_bytes) << name;
      EXPECT_EQ(got[name].received_bytes, row.received_bytes) << name;
    }
    EXPECT_EQ(got.size(), rows_.size());
  }

 private:
  static std::string key(const comm::TrafficRow& row) {
    return fmt::format("{} {}", comm::name_of(row.op), row.label);
  }
  int64_t n_, r_;
  Rows rows_;
};

// After one step.
void expect_traffic(const TpCase& c, const RankModel& model) {
  using comm::Op;
  const comm::Group& tp = model.groups().tp();
  const ModelKeys& m = c.whole;
  const nn::Types types = nn::Types::of(c.compute);
  const int64_t s = size_of(types.wide), a = size_of(types.activation);
  const int64_t L = m.num_hidden_layers, TH = kTpTokens * m.hidden_size;
  const int64_t forwards = c.recompute ? 2 * L - 1 : L;
  const Op sum = c.sequence_parallel ? Op::kReduceScatter : Op::kAllReduce;
  ExpectedUse expected(tp.size(), tp.rank());
  for (const std::string part : {"tp attention", "tp feed-forward"}) {
    expected.add(sum, part, forwards, TH, s);
    expected.add(sum, part + " gradient", L, TH, a);
    if (!c.sequence_parallel) continue;
    expected.add(Op::kAllGather, part + " input", forwards + L, TH, a);
    expected.add(Op::kAllGather, part + " output gradient", L, TH, a);
  }
  expected.add(Op::kAllReduce, "tp router", L, kTpTokens, s);
  if (c.sequence_parallel) {
    expected.add(Op::kAllReduce, "tp norms", 1, (10 * L + 3) * m.hidden_size, s);
    expected.add(Op::kAllReduce, "tp embedding", 1, m.vocab_size * m.hidden_size, s);
  }
  expected.check(tp);
  const std::vector<const comm::Group*> groups = model.all_groups();
  const bool share_keys = c.tp > m.num_key_value_heads;
  ASSERT_EQ(groups.size(), share_keys ? 6u : 5u);
  if (!share_keys) return;
  const comm::Group& sharers = *groups.back();
  EXPECT_EQ(sharers.size(), c.tp / m.num_key_value_heads);
  ExpectedUse shared(sharers.size(), sharers.rank());
  shared.add(Op::kAllReduce, "tp query sums", forwards, kTpTokens * m.head_dim, s);
  shared.add(Op::kAllReduce, "tp key gradients", L, 3 * kTpTokens * m.head_dim, s);
  shared.check(sharers);
}

TEST_P(TpRanks, SayWhatTheFormulasSay) {
  TpCase c = GetParam();
  const Batch batch = tp_batch_of(c);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(c.tp, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                  [&](comm::Group& world) {
                    TinyRank rank(recipe_on_ranks(c), world, {.compute = c.compute});
                    rank.step(batch);
                    expect_traffic(c, rank.model);
                  });
  for (const DType compute : {DType::kF64, DType::kBF16})
    for (const int index : {0, c.tp - 1}) {
      c.compute = compute;
      Allocator meta(Device::kMeta);
      comm::RecordingWorld world(index, c.tp, {}, meta);
      TinyRank rank(recipe_on_ranks(c), world.group(),
                    {.compute = compute, .device = Device::kMeta});
      rank.step(batch);
      expect_traffic(c, rank.model);
    }
}

// Labels and workspace are in place after one step.
TEST(TpRanks, SteadyStepsAllocateNothing) {
  if (!counts_mallocs()) GTEST_SKIP() << "sanitizers bring their own allocator";
  for (const bool sharded : {false, true}) {
    const TpCase c{"", 4, spec_with_heads(8, 2), sharded, true};
    const Batch batch = tp_batch_of(c);
    Allocator allocator(Device::kCpu);
    int64_t before = 0, after = -1;
    comm::run_ranks(4, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                    [&](comm::Group& world) {
                      TinyRank rank(recipe_on_ranks(c), world);
                      const int64_t taken = rank.memory().num_allocations;
                      const auto steps = [&](int num_steps) {
                        for (int i = 0; i < num_steps; ++i) rank.step(batch);
                        for (int i = 0; i < 3; ++i) world.barrier("pause").wait();
                      };
                      steps(1);
                      if (world.rank() == 0) before = num_mallocs();
                      steps(5);
                      if (world.rank() == 0) after = num_mallocs();
                      world.barrier("pause").wait();
                      EXPECT_EQ(rank.memory().num_allocations, taken);
                    });
    EXPECT_EQ(after - before, 0) << sharded;
  }
}

}  // namespace
}  // namespace ashlar::parallel
