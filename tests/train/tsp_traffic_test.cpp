// The traffic of ranks that share heads and sequences (parallel.tsp) in a step is the table of
// docs/parallel/tsp.md, as integers, on real ranks and recorded.
#include "ashlar/core/rounding.h"
#include "tests/train/step_traffic.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using comm::Op;

struct TspSettings {
  int tsp, cp, num_key_heads, buckets, zero;
  bool recompute, cca;
  const char* precision;
};

std::string describe(const TspSettings& s) {
  return fmt::format("tsp {}, cp {}, {} key heads, zero {}, {}{}{}", s.tsp, s.cp, s.num_key_heads,
                     s.zero, s.precision, s.cca ? ", cca" : "", s.recompute ? ", recompute" : "");
}

// Products whose elements are no multiples of the alignment of a share.
Recipe recipe_of(const TspSettings& s) {
  return load_recipe(
      ASHLAR_FIXTURES "/recipes/tiny.toml",
      std::vector<std::string>{
          s.cca ? "model.layer_types=cca+mlp" : "model.layer_types=full_attention",
          "model.residual=plain", "model.partial_rotary_factor=1", "model.hidden_size=27",
          "model.intermediate_size=36", "model.head_dim=6", "model.num_attention_heads=8",
          fmt::format("model.num_key_value_heads={}", s.num_key_heads), "model.num_hidden_layers=3",
          "model.qk_norm=rms", "data.sequence_length=48", "train.micro_batch=2",
          "train.global_batch=4", "optim.matrices=adamw",
          std::string("train.precision=") + s.precision, fmt::format("parallel.tsp={}", s.tsp),
          fmt::format("parallel.cp={}", s.cp), fmt::format("parallel.zero={}", s.zero),
          fmt::format("train.recompute={}", s.recompute ? "true" : "false")});
}

// The table of comm/group.h.
Moved broadcast(int64_t n, int64_t r, int64_t root, int64_t numel, int64_t width) {
  if (r == root) return {1, numel * width, 0};
  const int64_t j = r < root ? r : r - 1;  // among those that are not the root
  const int64_t chunk = numel * (j + 1) / (n - 1) - numel * j / (n - 1);
  return {1, (n - 2) * chunk * width, numel * width};
}

Moved reduce(int64_t n, int64_t r, int64_t root, int64_t numel, int64_t width) {
  const int64_t S = numel * width, c = (numel * (r + 1) / n - numel * r / n) * width;
  return r == root ? Moved{1, S - c, (n - 1) * c + S - c} : Moved{1, S, (n - 1) * c};
}

// ZeRO's traffic of heads that several tsp ranks hold: whole weights are read in every turn, so
// that they are gathered as in stage 3, but for fp64, where they stay.
void add_zero_of_heads(const Trainer& trainer, Traffic& rows) {
  const parallel::RankModel& model = trainer.model();
  const comm::Group& ranks = model.groups().heads_data();
  const nn::FlatLayout& flat = model.local().flat();
  const nn::Types& types = model.local().types();
  const int64_t stage = model.parallel().zero, L = model.recipe().model.num_hidden_layers,
                m = model.micro_batches_per_step();
  const auto unit_of = [&](int64_t block) { return flat.units.first_of(block) + 1; };
  const comm::Op sum = stage == 0 ? comm::Op::kAllReduce : comm::Op::kReduceScatter;
  const bool stay = types.wide == DType::kF64 && stage < 3;
  for (int64_t l = 0; l < L; ++l) {
    rows[{"heads data", sum, "gradients"}] +=
        (stage >= 2 ? m : 1) * unit_once(model, ranks, unit_of(l), sum, types.wide);
    if (stage > 0)
      rows[{"heads data", Op::kAllGather, "weights"}] +=
          times_gathered(stay ? 1 : 3, l + 1, L, m) *
          unit_once(model, ranks, unit_of(l), Op::kAllGather, types.activation);
  }
}

Traffic formula(const Trainer& trainer) {
  const parallel::RankModel& model = trainer.model();
  const ModelKeys& m = trainer.recipe().model;
  const comm::Group &tsp = model.groups().tsp(), &heads = model.groups().heads(),
                    &cp = model.groups().cp();
  const int64_t n = tsp.size(), R = cp.size();
  // Ranks that take turns in attention: all, or where there are fewer key heads so many neighbours.
  const int64_t owners = std::min(n, m.num_key_value_heads), r = heads.rank();
  const int64_t buckets = model.parallel().tsp_head_buckets, turns = owners * buckets;
  const int64_t s = size_of(model.local().types().wide),
                a = size_of(model.local().types().activation);
  const int64_t passes = model.micro_batches_per_step() * m.num_hidden_layers;
  const int64_t H = m.hidden_size, D = m.head_dim, K = m.num_key_value_heads / turns,
                N = m.num_attention_heads / turns, F = m.intermediate_size / n;
  const int64_t qkv = (N + 2 * K) * D * H, o = N * D * H, gate_up = 2 * F * H, down = F * H;
  // CCA has one product more, and halos of the widest turn, made again where backward recomputes.
  const bool cca = m.has_mixer(CcaSpec::kKind);
  const int64_t conv = cca ? (N + K) * D * 2 * D : 0;
  const int64_t S_a = round_up(qkv, Arena::kAlign / s) + round_up(conv, Arena::kAlign / s) + o,
                S_m = round_up(gate_up, Arena::kAlign / s) + down;
  const int64_t T = trainer.recipe().train.micro_batch * trainer.recipe().data.sequence_length / R;
  const char* ranks = owners < n ? "heads" : "tsp";  // the group
  Traffic rows;
  if (owners < n) add_zero_of_heads(trainer, rows);
  for (int64_t turn = 0; turn < turns; ++turn) {
    rows[{ranks, Op::kBroadcast, "attention weights"}] +=
        2 * passes * broadcast(owners, r, turn / buckets, S_a, a);
    rows[{ranks, Op::kReduce, "attention gradients"}] +=
        passes * reduce(owners, r, turn / buckets, S_a, s);
    rows[{"cp", Op::kAllGather, "keys values"}] +=
        4 * passes * moved_evenly(Op::kAllGather, R, cp.rank(), R * T * K * D, a);
    rows[{"cp", Op::kReduceScatter, "keys values gradient"}] +=
        2 * passes * moved_evenly(Op::kReduceScatter, R, cp.rank(), R * T * K * D, s);
  }
  rows[{"tsp", Op::kSendReceive, "mlp weights"}] =
      2 * passes * (n - 1) * Moved{1, S_m * a, S_m * a};
  rows[{"tsp", Op::kSendReceive, "mlp gradients"}] = passes * (n - 1) * Moved{1, S_m * s, S_m * s};
  if (!cca) return rows;
  const int64_t p = cp.rank(), behind = (p < R - 1) + (p > 0), before = behind;  // zigzag
  const int64_t message = trainer.recipe().train.micro_batch * (2 * (N + K) * D + K * D) * s;
  const int64_t forwards = trainer.recipe().train.recompute ? 2 : 1;
  rows[{"cp", Op::kSendReceive, "halo"}] =
      forwards * passes * turns * Moved{1, behind * message, before * message};
  rows[{"cp", Op::kSendReceive, "halo gradient"}] =
      passes * turns * Moved{1, before * message, behind * message};
  return rows;
}

void expect_formula(const TspSettings& s, bool on_threads) {
  SCOPED_TRACE(describe(s));
  const Recipe recipe = recipe_of(s);
  const auto run = on_threads ? on_all_ranks : on_recorded_ranks;
  run(recipe, nn::resolve_precision(recipe.train.precision), s.tsp * s.cp,
      [](const Steps& steps, Traffic traffic) {
        std::erase_if(traffic, [](const auto& row) {
          const auto& [group, op, label] = row.first;
          return group != "tsp" && group != "cp" && group != "heads" && group != "heads data";
        });
        EXPECT_EQ(traffic, formula(steps.trainer()));
      });
}

// All as recorded ranks; every third also on threads, in which the inner three settings take turns.
TEST(TspTraffic, RealAndRecordedCountersAreTheFormulas) {
  int number = 0;
  for (const auto& [tsp, cp, keys, buckets] : {std::array{2, 1, 4, 1},
                                               {2, 1, 4, 2},
                                               {4, 1, 4, 1},
                                               {2, 2, 4, 1},
                                               {4, 1, 2, 1},
                                               {4, 2, 2, 1},
                                               {2, 2, 8, 2}})
    for (const char* precision : {"bf16", "fp32", "fp64"})
      for (const int zero : {0, 1, 3})
        for (const bool recompute : {false, true})
          for (const bool cca : {false, true})
            expect_formula({tsp, cp, keys, buckets, zero, recompute, cca, precision},
                           number++ % 3 == 0);
}

}  // namespace
}  // namespace ashlar::train
