// Tensor-parallel ranks give the loss and every gradient of one rank, and say to each other what
// the formulas say.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/parallel/mesh.h"
#include "tests/parallel/tensor_step.h"
#include "tests/support/malloc_count.h"

namespace ashlar::parallel {
namespace {

struct Outcome {
  double loss = 0;
  Whole gradients;
};

Outcome on_one_rank(const Case& c) {
  Step step(c, Device::kCpu);
  Outcome outcome;
  outcome.loss = step.run();
  outcome.gradients = put_together({gradients_of(step)});
  int64_t skipped = 0, most = 0;
  for (int64_t l = 0; l < c.whole.num_hidden_layers; ++l) {
    const std::span<const int64_t> loads = step.loads(l);
    skipped += loads.back();
    most = std::max(most, *std::max_element(loads.begin(), loads.end() - 1));
  }
  EXPECT_GT(most, kTokens / c.whole.num_experts + 1) << "the load is even";
  EXPECT_EQ(skipped > 0, c.whole.skip_output == SkipOutput::kIdentity);
  return outcome;
}

Outcome on_ranks(const Case& c) {
  std::vector<std::vector<Element>> gradients(static_cast<size_t>(c.tp));
  std::vector<double> losses(static_cast<size_t>(c.tp));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(c.tp, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                  [&](comm::Group& tp) {
                    Step step(c, Device::kCpu, tp);
                    step.run();  // leaves gradients that the next one must not keep
                    losses[size_t(tp.rank())] = step.run();
                    gradients[size_t(tp.rank())] = gradients_of(step);
                  });
  Outcome outcome;
  outcome.loss = losses[0];
  for (size_t r = 1; r < losses.size(); ++r) {
    if (c.sequence_parallel)
      outcome.loss += losses[r];
    else
      EXPECT_EQ(losses[r], losses[0]);
  }
  outcome.gradients = put_together(gradients);
  return outcome;
}

void expect_near(const Outcome& got, const Outcome& want, double tolerance) {
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

std::vector<Case> cases() {
  std::vector<Case> list;
  struct Mesh {
    int tp;
    int64_t heads, keys;
  };
  for (const Mesh& m : {Mesh{2, 4, 2}, Mesh{2, 8, 4}, Mesh{3, 3, 3}, Mesh{3, 6, 3}, Mesh{4, 8, 2},
                        Mesh{4, 4, 1}, Mesh{8, 8, 4}})
    for (const bool sharded : {false, true})
      for (const bool identity : {false, true}) {
        Case c{fmt::format("tp{}_heads{}_keys{}{}{}", m.tp, m.heads, m.keys,
                           sharded ? "_sequence_parallel" : "", identity ? "_skip_recompute" : ""),
               m.tp, spec_of(m.heads, m.keys), sharded};
        if (identity) {
          c.whole.skip_output = SkipOutput::kIdentity;
          c.keep = nn::Keep::kBlockInput;
        }
        list.push_back(c);
      }
  return list;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

class TensorRanks : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Tensor, TensorRanks, testing::ValuesIn(cases()), name_of);

TEST_P(TensorRanks, EqualOneRank) {
  expect_near(on_ranks(GetParam()), on_one_rank(GetParam()), 1e-10);
}

TEST(TensorRanks, EqualOneRankInFp32AndAlmostInBf16) {
  for (const bool sharded : {false, true}) {
    Case c{"", 4, spec_of(8, 2), sharded, nn::Keep::kAll, DType::kF32};
    expect_near(on_ranks(c), on_one_rank(c), 2e-4);
    c.compute = DType::kBF16;
    EXPECT_NEAR(on_ranks(c).loss / on_one_rank(c).loss, 1, 1e-2);
  }
}

// On cp x tp ranks: losses and gradients are sums over cp.
Outcome on_mesh(const Case& c) {
  const auto n = static_cast<size_t>(c.cp * c.tp);
  std::vector<std::vector<std::vector<Element>>> gradients(size_t(c.cp));
  for (auto& ranks : gradients) ranks.resize(size_t(c.tp));
  std::vector<double> losses(n);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(
      int(n), {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator, [&](comm::Group& world) {
        const Groups groups(world, Mesh{{1, 1, c.cp, c.tp}});
        Step step(c, Device::kCpu, groups.tp(), &groups.cp());
        losses[size_t(world.rank())] = step.run();
        gradients[size_t(groups.cp().rank())][size_t(groups.tp().rank())] = gradients_of(step);
      });
  Outcome sum;
  for (size_t r = 0; r < n; ++r)
    if (c.sequence_parallel || r % size_t(c.tp) == 0) sum.loss += losses[r];
  for (const auto& ranks : gradients)
    for (const auto& [name, values] : put_together(ranks)) {
      std::vector<double>& total = sum.gradients[name];
      total.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) total[i] += values[i];
    }
  return sum;
}

TEST(TensorRanks, AndContextRanksEqualOneRank) {
  for (const ContextExchange exchange : {ContextExchange::kAllGather, ContextExchange::kRing})
    for (const bool sharded : {false, true})
      for (const int64_t keys : {1, 2, 4}) {
        const Case c{"", 2, spec_of(4, keys), sharded, nn::Keep::kAll, DType::kF64, 2, exchange};
        SCOPED_TRACE(fmt::format("keys {} sharded {} ring {}", keys, sharded,
                                 exchange == ContextExchange::kRing));
        expect_near(on_mesh(c), on_one_rank(c), 1e-10);
      }
}

using Rows = std::map<std::string, comm::TrafficRow>;

// Operations of one rank, after the formulas of docs/parallel-tensor.md.
class Expected {
 public:
  Expected(int n, int r) : n_(n), r_(r) {}
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
void expect_traffic(const Case& c, const comm::Group& tp, const TensorRunner& runner) {
  using comm::Op;
  const ModelSpec& m = c.whole;
  const nn::Types types = nn::Types::of(c.compute);
  const int64_t s = size_of(types.stream), a = size_of(types.activation);
  const int64_t L = m.num_hidden_layers, TH = kTokens * m.hidden_size;
  const int64_t forwards = c.keep == nn::Keep::kBlockInput ? 2 * L - 1 : L;
  const Op sum = c.sequence_parallel ? Op::kReduceScatter : Op::kAllReduce;
  Expected expected(tp.size(), tp.rank());
  for (const std::string part : {"tp attention", "tp experts"}) {
    expected.add(sum, part, forwards, TH, s);
    expected.add(sum, part + " gradient", L, TH, part == "tp attention" ? a : s);
    if (!c.sequence_parallel) continue;
    expected.add(Op::kAllGather, part + " input", forwards + L, TH, a);
    expected.add(Op::kAllGather, part + " output gradient", L, TH, a);
  }
  expected.add(Op::kAllReduce, "tp router", L, kTokens, s);
  if (c.sequence_parallel) {
    expected.add(Op::kAllReduce, "tp norms", 1, (10 * L + 3) * m.hidden_size, s);
    expected.add(Op::kAllReduce, "tp embedding", 1, m.vocab_size * m.hidden_size, s);
  }
  expected.check(tp);
  ASSERT_EQ(runner.sharers() != nullptr, c.tp > m.num_key_value_heads);
  if (!runner.sharers()) return;
  EXPECT_EQ(runner.sharers()->size(), c.tp / m.num_key_value_heads);
  Expected shared(runner.sharers()->size(), runner.sharers()->rank());
  shared.add(Op::kAllReduce, "tp query sums", forwards, kTokens * m.head_dim, s);
  shared.add(Op::kAllReduce, "tp key gradients", L, 3 * kTokens * m.head_dim, s);
  shared.check(*runner.sharers());
}

TEST_P(TensorRanks, SayWhatTheFormulasSay) {
  Case c = GetParam();
  Allocator allocator(Device::kCpu);
  comm::run_ranks(c.tp, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                  [&](comm::Group& tp) {
                    Step step(c, Device::kCpu, tp);
                    step.run();
                    expect_traffic(c, tp, step.runner());
                  });
  for (const DType compute : {DType::kF64, DType::kBF16})
    for (const int rank : {0, c.tp - 1}) {
      c.compute = compute;
      Allocator meta(Device::kMeta);
      comm::RecordingWorld world(rank, c.tp, {}, meta);
      Step step(c, Device::kMeta, world.group());
      step.run();
      expect_traffic(c, world.group(), step.runner());
    }
}

// Labels and workspace are in place after a few steps.
TEST(TensorRanks, SteadyStepsAllocateNothing) {
  if (!testing_support::counts_mallocs()) GTEST_SKIP() << "sanitizers bring their own allocator";
  for (const bool sharded : {false, true}) {
    const Case c{"", 4, spec_of(8, 2), sharded, nn::Keep::kBlockInput};
    Allocator allocator(Device::kCpu);
    int64_t before = 0, after = -1;
    comm::run_ranks(4, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                    [&](comm::Group& tp) {
                      Step step(c, Device::kCpu, tp);
                      const int64_t taken = step.allocator().counts().num_allocations;
                      const auto steps = [&](int num_steps) {
                        for (int i = 0; i < num_steps; ++i) step.run();
                        for (int i = 0; i < 3; ++i) tp.barrier("pause").wait();
                      };
                      steps(40);  // every slot of the queue has held every operation
                      if (tp.rank() == 0) before = testing_support::num_mallocs();
                      steps(5);
                      if (tp.rank() == 0) after = testing_support::num_mallocs();
                      tp.barrier("pause").wait();
                      EXPECT_EQ(step.allocator().counts().num_allocations, taken);
                    });
    EXPECT_EQ(after - before, 0) << sharded;
  }
}

}  // namespace
}  // namespace ashlar::parallel
