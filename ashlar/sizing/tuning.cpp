#include "ashlar/sizing/tuning.h"

#include <fmt/format.h>

namespace ashlar::sizing {
namespace {

constexpr BlockPart kMixer = BlockPart::kMixer, kMlp = BlockPart::kMlp,
                    kExperts = BlockPart::kExperts, kRouter = BlockPart::kRouter;

void add_matrices(std::vector<MatrixStack>& list, const AttentionSpec& m, double H) {
  const double q = double(m.q_dim()), kv = double(m.kv_dim());
  list.push_back({q, H, 1, kMixer, TpCut::kRows, "self_attn.q_proj.weight"});
  if (m.output_gate) list.push_back({q, H, 1, kMixer, TpCut::kRows, "self_attn.gate_proj.weight"});
  list.push_back({kv, H, 1, kMixer, TpCut::kRows, "self_attn.k_proj.weight"});
  list.push_back({kv, H, 1, kMixer, TpCut::kRows, "self_attn.v_proj.weight"});
  list.push_back({H, q, 1, kMixer, TpCut::kCols, "self_attn.o_proj.weight"});
}
void add_matrices(std::vector<MatrixStack>& list, const CcaSpec& m, double H) {
  const double q = double(m.q_dim()), kv = double(m.kv_dim());
  list.push_back({q, H, 1, kMixer, TpCut::kRows, "self_attn.qkv_proj.q_proj.weight"});
  list.push_back({kv, H, 1, kMixer, TpCut::kRows, "self_attn.qkv_proj.k_proj.weight"});
  list.push_back({kv / 2, H, 1, kMixer, TpCut::kRows, "self_attn.qkv_proj.v_proj_current.weight"});
  list.push_back({kv / 2, H, 1, kMixer, TpCut::kRows, "self_attn.qkv_proj.v_proj_delayed.weight"});
  list.push_back({H, q, 1, kMixer, TpCut::kCols, "self_attn.o_proj.weight"});
}
void add_matrices(std::vector<MatrixStack>& list, const LinearSpec& m, double H) {
  const double k = double(m.key_dim()), v = double(m.value_dim());
  list.push_back({k, H, 1, kMixer, TpCut::kRows, "self_attn.q_proj.weight"});
  list.push_back({k, H, 1, kMixer, TpCut::kRows, "self_attn.k_proj.weight"});
  list.push_back({v, H, 1, kMixer, TpCut::kRows, "self_attn.v_proj.weight"});
  list.push_back({v, H, 1, kMixer, TpCut::kRows, "self_attn.gate_proj.weight"});
  list.push_back({H, v, 1, kMixer, TpCut::kCols, "self_attn.o_proj.weight"});
}
void add_matrices(std::vector<MatrixStack>& list, const MlpSpec& m, double H) {
  const double F = double(m.width);
  list.push_back({F, H, 1, kMlp, TpCut::kRows, "mlp.gate_proj.weight"});
  list.push_back({F, H, 1, kMlp, TpCut::kRows, "mlp.up_proj.weight"});
  list.push_back({H, F, 1, kMlp, TpCut::kCols, "mlp.down_proj.weight"});
}
void add_matrices(std::vector<MatrixStack>& list, const MoeSpec& m, double H) {
  const double E = double(m.num_experts), F = double(m.width);
  list.push_back({2 * F, H, E, kExperts, TpCut::kRows, "mlp.experts.gate_up_proj"});
  list.push_back({H, F, E, kExperts, TpCut::kCols, "mlp.experts.down_proj"});
  if (const auto* mlp = std::get_if<MlpRouterSpec>(&m.router)) {
    const double R = double(mlp->width);
    list.push_back({R, H, 1, kRouter, TpCut::kNone, "mlp.gate.down_proj.weight"});
    list.push_back({R, R, 1, kRouter, TpCut::kNone, "mlp.gate.router_mlp.fc1.weight"});
    list.push_back({R, R, 1, kRouter, TpCut::kNone, "mlp.gate.router_mlp.fc2.weight"});
    list.push_back({E + 1, R, 1, kRouter, TpCut::kNone, "mlp.gate.router_mlp.out_proj.weight"});
  } else {
    list.push_back({E, H, 1, kRouter, TpCut::kNone, "mlp.gate.weight"});
  }
  const double shared = double(m.shared.width);
  if (shared == 0) return;
  list.push_back({shared, H, 1, kMlp, TpCut::kRows, "mlp.shared_expert.gate_proj.weight"});
  list.push_back({shared, H, 1, kMlp, TpCut::kRows, "mlp.shared_expert.up_proj.weight"});
  list.push_back({H, shared, 1, kMlp, TpCut::kCols, "mlp.shared_expert.down_proj.weight"});
}

BlockTuning tuning_of(const BlockSpec& block, double hidden, int64_t number, const TuneSpec& tune) {
  BlockTuning tuning;
  if (tune.trains_all()) {
    tuning.trained = matrices_of(block, hidden);
    return tuning;
  }
  tuning.rank = double(tune.lora.rank);
  for (const MatrixStack& m : matrices_of(block, hidden)) {
    const std::string name = fmt::format("model.layers.{}.{}", number, m.name);
    (tune.freezes(name) ? tuning.frozen : tuning.trained).push_back(m);
    if (tune.adapts(name)) tuning.adapted.push_back(m);
  }
  return tuning;
}

}  // namespace

std::vector<MatrixStack> matrices_of(const BlockSpec& block, double hidden) {
  std::vector<MatrixStack> list;
  std::visit([&](const auto& spec) { add_matrices(list, spec, hidden); }, block.mixer);
  std::visit([&](const auto& spec) { add_matrices(list, spec, hidden); }, block.feed_forward);
  return list;
}

BlockWeights weights_of(std::span<const MatrixStack> matrices) {
  BlockWeights weights;
  for (const MatrixStack& m : matrices)
    (m.part == kMixer     ? weights.mixer
     : m.part == kMlp     ? weights.mlp
     : m.part == kExperts ? weights.experts
                          : weights.router) += m.numel();
  return weights;
}

double BlockTuning::adapters(bool of_experts, double tp) const {
  double numel = 0;
  for (const MatrixStack& m : adapted) {
    if ((m.part == kExperts) != of_experts) continue;
    numel += m.count * rank * (m.cols_here(tp) + m.rows_here(tp));
  }
  return numel;
}

double BlockTuning::trained_share(BlockPart part) const {
  double of_part = 0, all = 0;
  for (const MatrixStack& m : trained)
    if (m.part == part) of_part += m.numel();
  all = of_part;
  for (const MatrixStack& m : frozen)
    if (m.part == part) all += m.numel();
  return all > 0 ? of_part / all : 1;
}

ModelTuning tuning_of(const ModelSpec& model, const TuneSpec& tune) {
  ModelTuning tuning;
  for (int64_t l = 0; l < model.num_blocks(); ++l)
    tuning.blocks.push_back(tuning_of(model.blocks[size_t(l)], double(model.hidden_size), l, tune));
  const char* const table = "model.embed_tokens.weight";
  tuning.embedding = !tune.freezes(table);
  tuning.head = !tune.freezes(model.tied_head ? table : "lm_head.weight");
  tuning.vectors = !tune.has_adapters();
  return tuning;
}

}  // namespace ashlar::sizing
