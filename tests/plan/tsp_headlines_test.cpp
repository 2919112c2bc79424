// The published headlines of TSP (arXiv 2604.26294): memory of a rank, and forward throughput over
// TP with SP on 8 MI300X at 128K tokens.  One set of constants for all methods; every cause of a
// gain is a switch.  docs/bench/headlines.md has what these tests print.
//
// How it works.  The closed times are those of one block's forward pass: products and attention at
// a rate, collectives by the laws of machine/laws.h on the shipped profile.  The same layouts are
// then dry-run and replayed as this program trains them, which sums in fp32 and knows zigzag.
#include "ashlar/machine/laws.h"
#include "tests/plan/headlines.h"

namespace ashlar::plan {
namespace {

using namespace testing_support;

constexpr double kWidth = 4096, kBytes = 2, kDegree = 8;  // bf16
constexpr double kAttentionWeights = 4 * kWidth * kWidth, kMlpWeights = 12 * kWidth * kWidth;

// The reasons for which a method is slower or faster, besides the bytes it moves.
struct Switches {
  bool ring = false;        // keys pass from rank to rank over one link instead of a gather
  bool contiguous = false;  // a causal split that loads the last rank 2 - 1/n times the mean
  double attention_flops = 650e12;  // as much as products; less where attention is slower
};

class Machine {
 public:
  explicit Machine(const machine::Profile& profile) : cluster_(profile.cluster()) {
    cluster_.link_gbps *= profile.need("topology.link_usable").value;
    cluster_.nic_gbps *= profile.need("topology.nic_usable").value;
  }
  double link() const { return cluster_.link_gbps * 1e9; }
  double node(double n) const { return machine::node_ceiling(cluster_, int64_t(n)) * 1e9; }
  double nic() const { return cluster_.nic_gbps * 1e9; }
  static constexpr double kProducts = 650e12;  // below the profile's sustained_bf16

 private:
  machine::Cluster cluster_;
};

struct Work {
  double attention_linear, mlp, scores;  // flop of a rank
};
Work work_of(double S, double tokens) {
  return {2 * tokens * kAttentionWeights, 2 * tokens * kMlpWeights, 4 * tokens * S / 2 * kWidth};
}

// TSP on 8 ranks: weights are broadcast and passed on while the rank computes, keys gathered.
double tsp_s(const Machine& m, double S, double attention_flops, bool overlap = true) {
  const double share = (kDegree - 1) / kDegree;
  const Work work = work_of(S, S / kDegree);
  const double attention = work.attention_linear / m.kProducts + work.scores / attention_flops;
  const double mlp = work.mlp / m.kProducts;
  const double weights = kBytes * share * kAttentionWeights / m.node(kDegree);
  const double keys = 2 * kBytes * S * kWidth * share / m.node(kDegree);
  const double ring = kBytes * kMlpWeights * share / m.link();
  if (!overlap) return attention + mlp + weights + keys + ring;
  return std::max(attention, weights + keys) + (weights + keys) / kDegree + std::max(mlp, ring);
}

// TP on T ranks times SP on Sg: two all_reduces of activations and the keys, none of it hidden.
// across: bytes a second over which the keys move, where Sg spans nodes.
double tp_sp_s(const Machine& m, double S, double T, double Sg, const Switches& switches,
               double across = 0) {
  const Work work = work_of(S, S / (T * Sg));
  const double linear = (work.attention_linear + work.mlp) / m.kProducts;
  const double busiest = switches.contiguous ? 2 - 1 / Sg : 1;
  const double sums = T > 1 ? 2 * kBytes * 2 * (T - 1) / T * (S / Sg) * kWidth / m.node(T) : 0;
  const double keys = 2 * kBytes * S * kWidth / T * (Sg - 1) / Sg;
  const double rate = across > 0 ? across : switches.ring ? m.link() : m.node(Sg);
  return linear + work.scores / switches.attention_flops * busiest + sums + keys / rate;
}

const Switches kNone{}, kRing{.ring = true}, kContiguous{.contiguous = true},
    kBoth{.ring = true, .contiguous = true};

// Volume alone gives 1.4; a ring over one link and an unbalanced split give 2.15 together.
TEST(Headlines, T12TspForwardOverTpAndSp) {
  const Machine m(shipped_machine("mi300x-pollara").profile);
  constexpr double kLength = 131072;
  const double tsp = tsp_s(m, kLength, 650e12);
  EXPECT_NEAR(tsp * 1e3, 41, 0.5);
  const auto ratio = [&](double S, double T, double Sg, const Switches& switches) {
    return tp_sp_s(m, S, T, Sg, switches) / tsp_s(m, S, switches.attention_flops);
  };
  EXPECT_NEAR(ratio(kLength, 2, 4, kNone), 1.39, 0.01);
  EXPECT_NEAR(ratio(kLength, 2, 4, kRing), 1.66, 0.02);
  EXPECT_NEAR(ratio(kLength, 2, 4, kContiguous), 1.88, 0.02);
  EXPECT_NEAR(ratio(kLength, 2, 4, kBoth), 2.15, 0.02);
  EXPECT_GE(ratio(kLength, 2, 4, kBoth), 2.0);
  EXPECT_NEAR(ratio(kLength, 4, 2, kNone), 1.39, 0.02);
  EXPECT_NEAR(ratio(kLength, 4, 2, kBoth), 1.72, 0.02);
  for (const double S : {32768.0, 65536.0})
    EXPECT_GT(ratio(2 * S, 2, 4, kBoth), ratio(S, 2, 4, kBoth)) << S;
  const Work work = work_of(kLength, kLength / kDegree);
  print_headline(
      "TSP on 8: {:.1f} ms a block, {:.1f} without overlap; one block at 173M tokens/s "
      "on 1,024: {:.0f} TFLOP/s",
      tsp * 1e3, tsp_s(m, kLength, 650e12, false) * 1e3,
      (work.attention_linear + work.mlp + work.scores) / (kLength / kDegree / (173e6 / 1024)) /
          1e12);
  for (const double attention : {650e12, 300e12})
    for (const auto& [T, Sg] : {std::pair{2.0, 4.0}, {4.0, 2.0}})
      for (const auto& [name, base] : {std::pair{"gathered, zigzag", kNone},
                                       {"ring, zigzag", kRing},
                                       {"gathered, contiguous", kContiguous},
                                       {"ring, contiguous", kBoth}}) {
        Switches switches = base;
        switches.attention_flops = attention;
        print_headline("tp {} x sp {}, {:<20} attention {:.0f} TFLOP/s: {:.2f} {:.2f} {:.2f}", T,
                       Sg, name, attention / 1e12, ratio(32768, T, Sg, switches),
                       ratio(65536, T, Sg, switches), ratio(kLength, T, Sg, switches));
      }
  // On 64 GPUs sp spans 8 nodes.  The ratio is of GPU time for a token.
  const double over_nodes = tp_sp_s(m, kLength, 8, 8, kNone, m.nic()) * 64 / kDegree / tsp;
  print_headline("tp 8 x sp 8 over nodes: {:.2f} of a TSP group's time for a token", over_nodes);
  EXPECT_GT(over_nodes, 1);
}

// 2.61 asks for collectives at a quarter of one link, or for attention without cost.
TEST(Headlines, T12WhatTheLargerPublishedRatioAsksFor) {
  const Machine m(shipped_machine("mi300x-pollara").profile);
  constexpr double kLength = 131072;
  for (const auto& [T, Sg] : {std::pair{2.0, 4.0}, {4.0, 2.0}}) {
    const Work work = work_of(kLength, kLength / kDegree);
    const double compute = (work.attention_linear + work.mlp) / m.kProducts + work.scores / 300e12;
    const double bytes = 2 * kBytes * 2 * (T - 1) / T * (kLength / Sg) * kWidth +
                         2 * kBytes * kLength * kWidth / T * (Sg - 1) / Sg;
    const double gbps = bytes / (2.61 * tsp_s(m, kLength, 300e12) - compute) * 1e-9;
    print_headline("tp {} x sp {}: 2.61 at {:.1f} GB/s a rank, {:.0f} % of one link", T, Sg, gbps,
                   gbps / 64 * 100);
    EXPECT_GE(gbps, 10);
    EXPECT_LE(gbps, 17);
  }
}

// The programs that train here, dry-run and replayed: two blocks of recipes/tsp-7b.toml.
double simulated_forward_s(const MachineFile& machine, int64_t length,
                           const std::vector<std::string>& layout) {
  std::vector<std::string> keys = {"model.num_hidden_layers=2", "train.global_batch=1",
                                   "parallel.zero=0",
                                   fmt::format("data.sequence_length={}", length)};
  keys.insert(keys.end(), layout.begin(), layout.end());
  return simulate_headline(headline_recipe("tsp-7b.toml", keys), 8, machine).forward_s / 2;
}

TEST(Headlines, T12TheProgramsOfThisTrainer) {
  const MachineFile machine = shipped_machine("mi300x-pollara");
  const std::vector<std::string> split = {"parallel.tp=2", "parallel.cp=4",
                                          "parallel.cp_layout=contiguous"};
  double before = 0;
  for (const int64_t length : {32768, 131072}) {
    const double tsp = simulated_forward_s(machine, length, {"parallel.tsp=8"});
    const double tp_sp = simulated_forward_s(machine, length, split);
    print_headline("{:>6} tokens: tsp 8 {:.1f} ms a block, tp 2 x cp 4 contiguous {:.1f}: {:.2f}",
                   length, tsp * 1e3, tp_sp * 1e3, tp_sp / tsp);
    EXPECT_GT(tp_sp / tsp, std::max(before, 1.2));
    before = tp_sp / tsp;
  }
}

// 30 bytes a parameter, one bf16 stream a block for each token held, and one working set.
TEST(Headlines, T11PeaksOfPublishedShapes) {
  struct Split {
    const char* name;
    double state, held, keys, published;  // ranks that divide weights, and tokens
  };
  const double layers = 32, weights = layers * 16 * kWidth * kWidth, gathered = 4 * kWidth;
  const auto peak = [&](const Split& s, double S) {
    const double tokens = S / s.held;
    return (30 * weights / s.state + tokens * layers * kWidth * 2 +
            2 * tokens * 16 * kWidth / s.state + s.keys * S * gathered) *
           1e-9;
  };
  const Split tsp{"TSP 8", 8, 8, 2.0 / 8, 38.8}, tp{"TP 8", 8, 1, 0, 70.0};
  const Split others[] = {
      tp, {"TP 4 x SP 2", 4, 2, 1.0 / 4, 85.0}, {"TP 2 x SP 4", 2, 4, 1.0 / 2, 140.0}};
  double before = peak(tsp, 131072);
  print_headline("{}: {:.1f} GB, published {:.1f}", tsp.name, before, tsp.published);
  for (const Split& s : others) {
    const double gb = peak(s, 131072), ratio = gb / peak(tsp, 131072);
    const double published = s.published / tsp.published;
    print_headline("{}: {:.1f} GB, {:.2f} of TSP; published {:.1f}, {:.2f}", s.name, gb, ratio,
                   s.published, published);
    EXPECT_GT(gb, before);
    EXPECT_NEAR(ratio / published, 1, 0.1) << s.name;
    before = gb;
  }
  EXPECT_NEAR(peak(tsp, 131072) / peak(tsp, 16384) / 1.25, 1, 0.2);
  EXPECT_NEAR(peak(tp, 131072) / peak(tp, 16384) / 2.22, 1, 0.2);
}

}  // namespace
}  // namespace ashlar::plan
