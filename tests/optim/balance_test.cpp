#include "ashlar/optim/balance.h"

#include <cmath>
#include <random>

#include "tests/optim/optim_test_util.h"

namespace ashlar::optim {
namespace {

constexpr double kTolerance = 1e-6;

// Biases 0, .., 0, -1 of E experts and the skip class, and one balancer of all blocks.
struct Blocks {
  Blocks(int64_t num_blocks, int64_t num_experts, DType dtype, const BalanceSpec& spec)
      : balancer(nullptr) {
    std::vector<Balancer::Biases> blocks;
    for (int64_t l = 0; l < num_blocks; ++l) {
      biases.push_back(machine.zeros(dtype, {num_experts + 1}));
      set(biases.back(), num_experts, -1.0);
      counts.push_back(machine.zeros(DType::kI64, {num_experts + 1}));
      blocks.push_back(
          {biases.back(), "layers." + std::to_string(l) + ".balancing_biases", size_t(l)});
    }
    balancer = std::make_unique<Balancer>(machine.allocator, blocks, spec);
  }
  void count(const std::vector<std::vector<int64_t>>& values) {
    for (size_t l = 0; l < values.size(); ++l)
      std::copy(values[l].begin(), values[l].end(), counts[l].as<int64_t>());
  }

  Machine machine{1};
  std::vector<Tensor> biases, counts;
  std::unique_ptr<Balancer> balancer;
};

// The rule once more, in double.
struct Oracle {
  explicit Oracle(const std::vector<double>& biases, const BalanceSpec& spec)
      : spec(spec), b(biases), m(biases.size()), v(biases.size()) {}
  void update(const std::vector<int64_t>& counts, double factor) {
    ++t;
    const bool all = spec.target == BalanceTarget::kAllClasses;
    const size_t trained = all ? b.size() : b.size() - 1;
    double tokens = 0.0, mean = 0.0;
    for (const int64_t count : counts) tokens += double(count);
    for (size_t e = 0; e < trained; ++e) {
      const double g = double(counts[e]) / tokens - 1.0 / double(trained);
      m[e] = spec.beta1 * m[e] + (1 - spec.beta1) * g;
      v[e] = spec.beta2 * v[e] + (1 - spec.beta2) * g * g;
      const double m_hat = m[e] / (1 - std::pow(spec.beta1, t));
      const double v_hat = v[e] / (1 - std::pow(spec.beta2, t));
      b[e] -= spec.lr * factor * m_hat / (std::sqrt(v_hat) + spec.eps);
      mean += b[e] / double(trained);
    }
    if (!all)
      for (size_t e = 0; e < trained; ++e) b[e] -= mean;
  }
  BalanceSpec spec;
  std::vector<double> b, m, v;
  int t = 0;
};

std::vector<int64_t> random_counts(std::mt19937_64& rng, int64_t num_classes, int64_t num_tokens) {
  std::vector<int64_t> counts(static_cast<size_t>(num_classes));
  for (int64_t t = 0; t < num_tokens; ++t)
    ++counts[std::min(rng() % uint64_t(num_classes), rng() % 7)];
  return counts;
}

TEST(Balancer, FirstUpdateMovesEveryBiasByTheRateAgainstItsLoad) {
  BalanceSpec spec;
  Blocks blocks(1, 4, DType::kF64, spec);
  blocks.count({{70, 20, 10, 0, 0}});  // loads 0.7 0.2 0.1 0: one expert above 1/4
  blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
  // +-1e-3 each, then the mean of -1, +1, +1, +1 goes.
  const std::vector<double> expected = {-1.5e-3, 0.5e-3, 0.5e-3, 0.5e-3, -1.0};
  for (int64_t e = 0; e < 5; ++e) EXPECT_NEAR(get(blocks.biases[0], e), expected[size_t(e)], 1e-9);
}

TEST(Balancer, FollowsTheRecurrenceInEveryBlock) {
  for (const BalanceTarget target : {BalanceTarget::kRealExperts, BalanceTarget::kAllClasses}) {
    BalanceSpec spec;
    spec.lr = 3e-3, spec.beta1 = 0.8, spec.beta2 = 0.99, spec.target = target;
    Blocks blocks(3, 6, DType::kF64, spec);
    std::vector<Oracle> oracles;
    for (const Tensor& bias : blocks.biases) oracles.emplace_back(values_of(bias), spec);
    std::mt19937_64 rng(1);
    for (int update = 0; update < 40; ++update) {
      std::vector<std::vector<int64_t>> counts;
      for (Oracle& oracle : oracles) {
        counts.push_back(random_counts(rng, 7, 50 + update));
        oracle.update(counts.back(), 1.0 / (1 + update));
      }
      blocks.count(counts);
      blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0 / (1 + update));
      for (size_t l = 0; l < oracles.size(); ++l)
        for (int64_t e = 0; e < 7; ++e)
          ASSERT_NEAR(get(blocks.biases[l], e), oracles[l].b[size_t(e)], 1e-13) << update;
    }
    EXPECT_EQ(blocks.balancer->num_updates(), 40);
  }
}

TEST(Balancer, KeepsItsInvariantsAfterEveryUpdate) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Blocks blocks(2, 16, dtype, {});
    const std::string skip = bits_of(blocks.biases[0].slice(16, 17));
    std::mt19937_64 rng(2);
    for (int update = 0; update < 2000; ++update) {
      blocks.count({random_counts(rng, 17, 300), random_counts(rng, 17, 1)});
      blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
      for (const Tensor& bias : blocks.biases) {
        double sum = 0.0, largest = -2.0, size = 0.0;
        for (int64_t e = 0; e < 16; ++e) {
          sum += get(bias, e);
          largest = std::max(largest, get(bias, e));
          size = std::max(size, std::abs(get(bias, e)));
        }
        const double epsilon = dtype == DType::kF32 ? 1.2e-7 : 2.3e-16;
        ASSERT_LE(std::abs(sum), 32 * epsilon * (size + 1e-3)) << update;
        ASSERT_GE(largest, 0.0);
        ASSERT_EQ(bits_of(bias.slice(16, 17)), skip);
      }
    }
  }
}

TEST(Balancer, AStepThatIsUndoneChangesNothing) {
  for (const BalanceTarget target : {BalanceTarget::kRealExperts, BalanceTarget::kAllClasses})
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      BalanceSpec spec;
      spec.target = target, spec.scope = BalanceScope::kMicroBatch;
      Blocks undone(2, 6, dtype, spec), straight(2, 6, dtype, spec);
      const auto state = [](const Blocks& blocks) {
        std::string bits;
        for (const Tensor& bias : blocks.biases) bits += bits_of(bias);
        for (const Piece& piece : blocks.balancer->pieces()) bits += bits_of(piece.data);
        return bits;
      };
      std::mt19937_64 rng(3);
      for (int step = 0; step < 6; ++step) {
        const std::string before = state(undone);
        undone.balancer->keep(undone.machine.ctx);
        for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
          undone.count({random_counts(rng, 7, 90), random_counts(rng, 7, 90)});
          undone.balancer->update(undone.machine.ctx, undone.counts, 1.0);
          if (step % 2 == 0) continue;
          for (size_t l = 0; l < 2; ++l)
            std::copy_n(undone.counts[l].as<int64_t>(), 7, straight.counts[l].as<int64_t>());
          straight.balancer->update(straight.machine.ctx, straight.counts, 1.0);
        }
        EXPECT_NE(state(undone), before);
        if (step % 2 == 0) {
          undone.balancer->undo(undone.machine.ctx);
          EXPECT_EQ(state(undone), before);
        }
        EXPECT_EQ(state(undone), state(straight)) << step;
        EXPECT_EQ(undone.balancer->num_updates(), straight.balancer->num_updates());
      }
    }
}

// With all classes as target the frozen skip class is freed: no token goes there, so its bias rises
// by the rate every update, from -1 to about 0 in 1000.
TEST(Balancer, AllClassesLiftTheSkipClass) {
  BalanceSpec spec;
  spec.target = BalanceTarget::kAllClasses, spec.beta2 = 0.999;
  Blocks blocks(1, 4, DType::kF32, spec);
  blocks.count({{25, 25, 25, 25, 0}});
  blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
  EXPECT_NEAR(get(blocks.biases[0], 4), -0.999, kTolerance);
  EXPECT_NEAR(get(blocks.biases[0], 0), -0.001, kTolerance);  // no mean is taken off
  for (int update = 1; update < 1000; ++update)
    blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
  EXPECT_NEAR(get(blocks.biases[0], 4), 0.0, 1e-3);
}

// An update per micro-batch is two steps of the rule, an update per global batch one on the sums.
TEST(Balancer, MicroBatchesAreUpdatesOfTheirOwn) {
  const std::vector<int64_t> first = {8, 1, 1, 0}, second = {0, 1, 1, 8}, sum = {8, 2, 2, 8};
  BalanceSpec spec;
  spec.target = BalanceTarget::kAllClasses;
  Blocks micro(1, 3, DType::kF64, spec), global(1, 3, DType::kF64, spec);
  Oracle oracle(values_of(micro.biases[0]), spec);
  for (const auto& counts : {first, second}) {
    micro.count({counts});
    micro.balancer->update(micro.machine.ctx, micro.counts, 0.5);
    oracle.update(counts, 0.5);
  }
  global.count({sum});
  global.balancer->update(global.machine.ctx, global.counts, 0.5);
  EXPECT_EQ(micro.balancer->num_updates(), 2);
  EXPECT_EQ(global.balancer->num_updates(), 1);
  for (int64_t e = 0; e < 4; ++e) EXPECT_NEAR(get(micro.biases[0], e), oracle.b[size_t(e)], 1e-14);
  EXPECT_GT(std::abs(get(micro.biases[0], 0) - get(global.biases[0], 0)), 1e-4);
}

// Also biases that do not add up to 0, as weights from elsewhere may have them.
TEST(Balancer, AtRateZeroBiasesStay) {
  Machine machine{1};
  const Tensor bias = machine.zeros(DType::kF32, {4}), counts = machine.zeros(DType::kI64, {4});
  const std::vector<float> before = {0.3f, -0.1f, 0.2f, -1.0f};
  for (size_t e = 0; e < 4; ++e) {
    bias.as<float>()[e] = before[e];
    counts.as<int64_t>()[e] = int64_t(10 * e + 1);
  }
  Balancer balancer(machine.allocator, {{bias, "b", 0}}, {.lr = 0.0});
  balancer.update(machine.ctx, std::vector{counts}, 1.0);
  for (size_t e = 0; e < 4; ++e) EXPECT_EQ(bias.as<float>()[e], before[e]) << e;
}

TEST(Balancer, NoTokensMoveNothing) {
  Blocks blocks(1, 4, DType::kF32, {});
  const std::string before = bits_of(blocks.biases[0]);
  blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
  EXPECT_EQ(bits_of(blocks.biases[0]), before);
}

// Tokens with a fixed preference among the classes and noise, routed by argmax(p + bias).
class SkewedRouting {
 public:
  explicit SkewedRouting(uint64_t seed) : rng_(seed) {}
  std::vector<int64_t> route(const Tensor& bias_X, int64_t num_tokens) {
    const int64_t X = bias_X.numel();
    std::vector<int64_t> counts(static_cast<size_t>(X));
    std::vector<double> p(static_cast<size_t>(X));
    for (int64_t t = 0; t < num_tokens; ++t) {
      double sum = 0.0;
      for (int64_t e = 0; e < X; ++e) {
        const double preference = 1.5 - 3.0 * double(e) / double(X - 1);
        sum += p[size_t(e)] = std::exp(preference + noise_(rng_));
      }
      size_t best = 0;
      for (size_t e = 0; e < p.size(); ++e)
        if (p[e] / sum + get(bias_X, int64_t(e)) > p[best] / sum + get(bias_X, int64_t(best)))
          best = e;
      ++counts[best];
    }
    return counts;
  }

 private:
  std::mt19937_64 rng_;
  std::normal_distribution<double> noise_{0.0, 1.0};
};

TEST(Balancer, EvensOutASkewedLoad) {
  constexpr int64_t kExperts = 16, kTokens = 4096, kUpdates = 500;
  Blocks blocks(1, kExperts, DType::kF32, {});
  SkewedRouting routing(3);
  double first_entropy = 0.0, last_entropy = 0.0;
  for (int64_t update = 0; update < kUpdates; ++update) {
    const std::vector<int64_t> counts = routing.route(blocks.biases[0], kTokens);
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    ASSERT_EQ(total, kTokens);
    ASSERT_EQ(counts.back(), 0) << "skip was chosen in update " << update;
    last_entropy = load_entropy(std::span(counts).first(kExperts));
    if (update == 0) first_entropy = last_entropy;
    if (update >= kUpdates - 50) {
      ASSERT_GE(last_entropy, 0.99) << update;
    }
    blocks.count({counts});
    blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
  }
  EXPECT_LT(first_entropy, 0.8);
  EXPECT_GE(last_entropy, 0.99);
}

TEST(Balancer, ContinuesBitForBitFromItsPieces) {
  const auto run = [](int break_after) {
    BalanceSpec spec;
    Blocks blocks(2, 5, DType::kF32, spec);
    std::mt19937_64 rng(4);
    for (int update = 0; update < 60; ++update) {
      if (update == break_after) {
        auto next = std::make_unique<Balancer>(
            blocks.machine.allocator,
            std::vector<Balancer::Biases>{{blocks.biases[0], "layers.0.balancing_biases", 0},
                                          {blocks.biases[1], "layers.1.balancing_biases", 1}},
            spec);
        restore(blocks.balancer->pieces(), next->pieces());
        next->set_num_updates(blocks.balancer->num_updates());
        blocks.balancer = std::move(next);
      }
      blocks.count({random_counts(rng, 6, 64), random_counts(rng, 6, 64)});
      blocks.balancer->update(blocks.machine.ctx, blocks.counts, 1.0);
    }
    return bits_of(blocks.biases[0]) + bits_of(blocks.biases[1]);
  };
  const std::string straight = run(-1);
  EXPECT_EQ(run(30), straight);
  EXPECT_EQ(run(1), straight);
}

TEST(Balancer, StateIsNamedAfterItsBias) {
  const Blocks blocks(2, 3, DType::kF32, {});
  const std::vector<Piece> pieces = blocks.balancer->pieces();
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].logical.name, "optim.exp_avg.layers.0.balancing_biases");
  EXPECT_EQ(pieces[1].logical.name, "optim.exp_avg_sq.layers.0.balancing_biases");
  EXPECT_EQ(pieces[3].logical.name, "optim.exp_avg_sq.layers.1.balancing_biases");
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.logical.role, Role::kOptimizerState);
    EXPECT_EQ(piece.data.shape, (Shape{4}));
    EXPECT_EQ(piece.box, Box::whole({4}));
  }
}

TEST(LoadEntropy, IsOneWhenEvenAndZeroWhenAllGoToOne) {
  EXPECT_NEAR(load_entropy(std::vector<int64_t>{5, 5, 5, 5}), 1.0, 1e-15);
  EXPECT_EQ(load_entropy(std::vector<int64_t>{0, 9, 0}), 0.0);
  EXPECT_EQ(load_entropy(std::vector<int64_t>{0, 0, 0}), 0.0);
  EXPECT_EQ(load_entropy(std::vector<int64_t>{7}), 0.0);  // one expert cannot be uneven
  // -(3/4 ln 3/4 + 1/4 ln 1/4) / ln 2
  EXPECT_NEAR(load_entropy(std::vector<int64_t>{3, 1}), 0.8112781244591328, 1e-15);
  EXPECT_NEAR(load_entropy(std::vector<int64_t>{3, 1, 0, 0}), 0.8112781244591328 / 2, 1e-15);
}

// A router without a skip class, of k choices a token, behind a block that has no biases: as with
// one class more that nobody chose, whatever the target is.
TEST(Balancer, OfARouterWithoutSkipClass) {
  for (const BalanceTarget target : {BalanceTarget::kRealExperts, BalanceTarget::kAllClasses}) {
    const BalanceSpec real{.lr = 0.01};
    Blocks with_skip(1, 4, DType::kF64, real);
    BalanceSpec spec = real;
    spec.target = target;
    Machine machine{1};
    const Tensor bias = machine.zeros(DType::kF64, {4});
    const Tensor unbalanced = machine.zeros(DType::kI64, {3});
    Balancer balancer(machine.allocator, {{bias, "bias", 1}}, spec);
    for (int64_t update = 0; update < 20; ++update) {
      with_skip.count({{7 + update, 0, 12, 5, 0}});
      with_skip.balancer->update(with_skip.machine.ctx, with_skip.counts, 1.0);
      balancer.update(machine.ctx, std::vector<Tensor>{unbalanced, with_skip.counts[0]}, 1.0);
    }
    for (int64_t e = 0; e < 4; ++e) EXPECT_EQ(get(bias, e), get(with_skip.biases[0], e)) << e;
    EXPECT_LT(get(bias, 2), get(bias, 1));
    ASSERT_EQ(balancer.pieces().size(), 2u);
    EXPECT_EQ(balancer.pieces()[0].logical.name, "optim.exp_avg.bias");
  }
}

}  // namespace
}  // namespace ashlar::optim
