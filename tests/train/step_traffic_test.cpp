// All that ranks of a mesh with every technique say in a step is the sum of the closed formulas:
// ZeRO (parallel/zero.h), docs/parallel/tp.md, cp.md, muon.md, and the trainer's own
// sums.
#include "tests/train/step_traffic.h"

#include <mutex>

#include "ashlar/tensor/pieces.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using comm::Op;

// Mixtures of three experts a token, a gated shared expert and both losses.
const std::vector<std::string> kTopK = {
    "model.layer_types=attention+moe", "model.router=linear",
    "model.num_experts_per_tok=3",     "model.shared_expert_intermediate_size=24",
    "model.shared_expert_gate=true",   "moe.router_aux_loss_coef=0.01",
    "moe.router_z_loss_coef=0.001"};

Recipe recipe_of(int zero, bool sharded_stream, CpExchange exchange, const char* muon,
                 bool top_k = false) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> overrides = {
      "model.num_hidden_layers=3",
      "data.sequence_length=16",
      "train.micro_batch=1",
      "train.global_batch=4",
      "train.precision=fp32",
      "parallel.dp=2",
      "parallel.cp=2",
      "parallel.tp=2",
      "parallel.bucket_bytes=20000",
      fmt::format("parallel.zero={}", zero),
      fmt::format("parallel.sequence_parallel={}", flag(sharded_stream)),
      fmt::format("train.recompute={}", flag(exchange != CpExchange::kAllGather)),
      std::string("parallel.cp_layout=") + (sharded_stream ? "zigzag" : "contiguous"),
      fmt::format("parallel.cp_exchange={}", kCpExchangeNames[size_t(exchange)]),
      std::string("parallel.muon=") + muon};
  if (top_k) overrides.insert(overrides.end(), kTopK.begin(), kTopK.end());
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// Sizes as the documents name them; of one rank and micro-batch.
struct Sizes {
  explicit Sizes(const Trainer& trainer) : trainer(trainer) {}
  const Trainer& trainer;
  const Recipe& recipe = trainer.recipe();
  const ModelKeys& model = recipe.model;
  const int64_t m = trainer.model().micro_batches_per_step();
  const int64_t L = model.num_hidden_layers, B = recipe.train.micro_batch, s = 4, a = 4;
  const int64_t T = B * recipe.data.sequence_length / trainer.model().parallel().cp;
  const int64_t forwards = m * (recipe.train.recompute ? 2 * L - 1 : L), backwards = m * L;
  const bool sharded_stream = trainer.model().parallel().sequence_parallel;
  const bool top_k = model.router == RouterKind::kLinear;
};

class Formulas {
 public:
  explicit Formulas(const Trainer& trainer) : z_(trainer), rows_(zero_formula(trainer)) {
    add_tensor();
    add_context();
    add_sums();
  }
  const Traffic& rows() const { return rows_; }

 private:
  void add(const comm::Group& group, Op op, const std::string& label, int64_t times, int64_t numel,
           int64_t width) {
    rows_[{group.name(), op, label}] +=
        times * moved_evenly(op, group.size(), group.rank(), numel, width);
  }

  void add_tensor() {
    const comm::Group& tp = z_.trainer.model().groups().tp();
    const int64_t TH = z_.T * z_.model.hidden_size;
    const Op sum = z_.sharded_stream ? Op::kReduceScatter : Op::kAllReduce;
    for (const std::string part : {"tp attention", "tp feed-forward"}) {
      // Behind a plain residual nobody reads what a recomputed feed-forward would return.
      const bool once = z_.top_k && part == "tp feed-forward";
      const int64_t forwards = once ? z_.m * z_.L : z_.forwards;
      add(tp, sum, part, forwards, TH, z_.s);
      add(tp, sum, part + " gradient", z_.backwards, TH, z_.a);
      if (!z_.sharded_stream) continue;
      add(tp, Op::kAllGather, part + " input", forwards + z_.backwards, TH, z_.a);
      add(tp, Op::kAllGather, part + " output gradient", z_.backwards, TH, z_.a);
    }
    // Traffic of each expert of a token, and of the shared expert's gate.
    const int64_t gradients = z_.top_k ? z_.model.linear_router.num_chosen + 1 : 1;
    add(tp, Op::kAllReduce, "tp router", z_.backwards, z_.T * gradients, z_.s);
    if (!z_.sharded_stream) return;
    const int64_t H = z_.model.hidden_size;
    const int64_t vectors = z_.top_k ? 2 * z_.L + 1 : 10 * z_.L + 3;
    add(tp, Op::kAllReduce, "tp norms", 1, vectors * H, z_.s);
    add(tp, Op::kAllReduce, "tp embedding", 1, z_.model.vocab_size * H, z_.s);
  }

  void add_context() {
    const comm::Group &cp = z_.trainer.model().groups().cp(),
                      &tp = z_.trainer.model().groups().tp();
    const int64_t n = cp.size(), r = cp.rank(), t = tp.size(), D = z_.model.head_dim;
    const bool zigzag = z_.trainer.model().parallel().cp_layout == CpLayout::kZigzag;
    const int64_t behind = (r < n - 1) + (zigzag && r > 0),
                  before = (r > 0) + (zigzag && r < n - 1);
    // Columns of the rank's heads; the second half of all value columns is delayed.
    const int64_t all = z_.model.num_key_value_heads * D, kd = all / t;
    const int64_t C = z_.model.num_attention_heads * D / t + kd;
    const int64_t W = std::clamp<int64_t>((tp.rank() + 1) * kd - all / 2, 0, kd);
    const int64_t message = z_.B * (2 * C + W) * z_.s;
    if (z_.top_k) {
      add(cp, Op::kAllReduce, "row loads", z_.backwards, z_.B * z_.model.num_experts, z_.s);
    } else {
      rows_[{"cp", Op::kSendReceive, "halo"}] =
          z_.forwards * Moved{1, behind * message, before * message};
      rows_[{"cp", Op::kSendReceive, "halo gradient"}] =
          z_.backwards * Moved{1, before * message, behind * message};
    }
    const int64_t passes = z_.forwards + z_.backwards;
    const CpExchange exchange = z_.trainer.model().parallel().cp_exchange;
    if (exchange == CpExchange::kAllToAll) return add_context_by_heads(n, t);
    if (exchange == CpExchange::kRing) {
      const int64_t keys = 2 * z_.T * kd * z_.a, gradient = 2 * z_.T * kd * z_.s;
      rows_[{"cp", Op::kSendReceive, "keys values"}] = (n - 1) * passes * Moved{1, keys, keys};
      rows_[{"cp", Op::kSendReceive, "keys values gradient"}] =
          (n - 1) * z_.backwards * Moved{1, gradient, gradient};
    } else {
      add(cp, Op::kAllGather, "keys values", 2 * passes, n * z_.T * kd, z_.a);
      add(cp, Op::kReduceScatter, "keys values gradient", 2 * z_.backwards, n * z_.T * kd, z_.s);
    }
  }

  void add_context_by_heads(int64_t n, int64_t t) {
    const int64_t D = z_.model.head_dim,
                  keys = std::max<int64_t>(1, z_.model.num_key_value_heads / t);
    const int64_t query = z_.T * z_.model.num_attention_heads / t / n * D,
                  key = z_.T * std::max<int64_t>(1, keys / n) * D;
    const auto add_all = [&](const char* label, int64_t times, int64_t numel, int64_t width) {
      rows_[{"cp", Op::kAllToAll, label}] =
          times * Moved{1, (n - 1) * numel * width, (n - 1) * numel * width};
    };
    add_all("queries", z_.forwards, query, z_.a);
    add_all("keys values", 2 * (z_.forwards + (keys < n ? z_.backwards : 0)), key, z_.a);
    add_all("output", z_.forwards + z_.backwards, query, z_.a);
    add_all("output gradient", z_.backwards, query, z_.a);
    add_all("queries gradient", z_.backwards, query, z_.s);
    add_all("keys values gradient", 2 * z_.backwards, key, z_.s);
  }

  // Loss, targets and the routers' two losses, the norm, and what each expert got.
  void add_sums() {
    const parallel::Groups& groups = z_.trainer.model().groups();
    add(groups.data(), Op::kAllReduce, "loads", 1, z_.L * (z_.model.num_experts + 1), 8);
    add(z_.sharded_stream ? groups.model() : groups.data(), Op::kAllReduce, "loss", 1,
        z_.top_k ? 4 : 2, 8);
    add(groups.model(), Op::kAllReduce, "gradient norm", 1, 1, 8);
  }

  const Sizes z_;
  Traffic rows_;
};

// Elements of every matrix on each rank that holds some of one copy of it.
using Matrix = std::tuple<std::string, int, int64_t>;  // tensor, copy, number
using Holders = std::map<Matrix, std::map<int, int64_t>>;

void add_holdings(const Trainer& trainer, Holders& holders) {
  for (const Parameter& p : trainer.optimizer().parameters()) {
    if (p.kind != OptimizerKind::kMuon) continue;
    const int64_t rows = p.logical.global_shape[0] / p.num_matrices;
    for (const Piece& piece : pieces_of({&p, p.logical, p.value}))
      for (int64_t row = 0; row < piece.box.length[0]; ++row)
        holders[{p.logical.name, p.copy, (piece.box.offset[0] + row) / rows}]
               [trainer.model().groups().rank()] += piece.box.length.numel() / piece.box.length[0];
  }
}

// The table of docs/parallel/muon.md, added up over all ranks: {gather, scatter} bytes.
std::pair<int64_t, int64_t> muon_formula(const Holders& holders, MuonMode mode, int64_t width) {
  int64_t gather = 0, scatter = 0;
  for (const auto& [matrix, shares] : holders) {
    const auto k = int64_t(shares.size());
    if (k == 1) continue;
    int64_t all = 0, most = 0;
    for (const auto& [rank, elements] : shares)
      all += elements * width, most = std::max(most, elements * width);
    if (mode == MuonMode::kReplicate || (mode == MuonMode::kAuto && k <= 3)) {
      gather += (k - 1) * all;
    } else {
      gather += all - most;
      scatter += all - most;
    }
  }
  return {gather, scatter};
}

void expect_formulas(const Recipe& recipe) {
  std::mutex mutex;
  Holders holders;
  Moved gather, scatter;
  on_all_ranks(recipe, DType::kF32, 8, [&](const Steps& steps, const Traffic& traffic) {
    const std::lock_guard lock(mutex);
    Traffic others;
    for (const auto& [key, moved] : traffic) {
      const std::string& label = std::get<2>(key);
      if (label == "muon gather")
        gather += moved;
      else if (label == "muon scatter")
        scatter += moved;
      else
        others[key] = moved;
    }
    EXPECT_EQ(others, Formulas(steps.trainer()).rows())
        << "rank " << steps.trainer().model().groups().rank();
    add_holdings(steps.trainer(), holders);
  });
  const auto [gathered, scattered] = muon_formula(holders, recipe.parallel.muon, 4);
  EXPECT_GT(gathered, 0);
  EXPECT_EQ(gather.sent_bytes, gathered);
  EXPECT_EQ(gather.received_bytes, gathered);
  EXPECT_EQ(scatter.sent_bytes, scattered);
  EXPECT_EQ(scatter.received_bytes, scattered);
}

TEST(StepTraffic, IsTheSumOfTheFormulasOfAllTechniques) {
  for (const int zero : {0, 1, 2, 3})
    for (const bool sharded_stream : {false, true})
      for (const CpExchange exchange :
           {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll})
        for (const char* muon : {"auto", "owner"}) {
          SCOPED_TRACE(fmt::format("zero {}, sequence_parallel {}, {}, muon {}", zero,
                                   sharded_stream, kCpExchangeNames[size_t(exchange)], muon));
          expect_formulas(recipe_of(zero, sharded_stream, exchange, muon));
        }
}

TEST(StepTraffic, OfMixturesOfSeveralExperts) {
  for (const int zero : {0, 3})
    for (const bool sharded_stream : {false, true})
      for (const bool ring : {false, true}) {
        SCOPED_TRACE(
            fmt::format("zero {}, sequence_parallel {}, ring {}", zero, sharded_stream, ring));
        expect_formulas(recipe_of(zero, sharded_stream,
                                  ring ? CpExchange::kRing : CpExchange::kAllGather, "auto", true));
      }
}

}  // namespace
}  // namespace ashlar::train
