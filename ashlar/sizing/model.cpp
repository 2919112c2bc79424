#include "ashlar/sizing/model.h"

#include <set>
#include <string_view>

namespace ashlar {
namespace {

constexpr int64_t kDepthwiseTaps = 2, kGroupedTaps = 2;

// One branch's share of the sums of the model; first: no earlier block has its kind.
struct BranchParameters {
  int64_t all = 0, active = 0, buffers = 0;
};

BranchParameters parameters_of(const CcaSpec& spec, int64_t hidden_size, bool) {
  const int64_t total = cca_parameters(spec, hidden_size).total;
  return {total, total, 0};
}

BranchParameters parameters_of(const AttentionSpec& spec, int64_t hidden_size, bool) {
  const int64_t gate = spec.output_gate ? spec.q_dim() : 0;
  const int64_t projections = hidden_size * (2 * spec.q_dim() + 2 * spec.kv_dim() + gate);
  int64_t total = projections + (spec.qk_norm == QkNorm::kRms ? 2 * spec.head_dim : 0);
  if (spec.bias != AttentionBias::kNone) total += spec.q_dim() + 2 * spec.kv_dim() + gate;
  if (spec.bias == AttentionBias::kQkvo) total += hidden_size;
  return {total, total, 0};
}

BranchParameters parameters_of(const LinearSpec& spec, int64_t hidden_size, bool) {
  const int64_t H = hidden_size, values = spec.value_dim(), heads = spec.num_value_heads;
  int64_t total = 2 * H * spec.key_dim() + 3 * H * values;  // q k, v gate o
  total += spec.conv_taps * spec.conv_channels();
  total += spec.kind == LinearKind::kLightning ? values : spec.value_head_dim;  // norm
  if (spec.kind == LinearKind::kGla) {
    const int64_t channels = heads * spec.key_head_dim;
    total += LinearSpec::kGateRank * (H + channels) + channels;
  }
  if (spec.kind == LinearKind::kGatedDelta) total += 2 * heads * H + 2 * heads;
  return {total, total, 0};
}

BranchParameters parameters_of(const MlpSpec& spec, int64_t hidden_size, bool) {
  const int64_t total = 3 * hidden_size * spec.width;
  return {total, total, 0};
}

BranchParameters parameters_of(const MoeSpec& spec, int64_t hidden_size, bool first) {
  const MoeParameters p = moe_parameters(spec, hidden_size);
  const int64_t common = p.router + (first ? 0 : p.router_scale) + p.shared;
  return {common + p.experts, common + spec.experts_of_token() * p.expert, p.buffers};
}

// Multiply-adds per token: of products, of the scores with each key that it reads, and of the
// states that it changes and reads.
struct BranchFlop {
  double products = 0;
  double per_key = 0;
  int64_t window = 0;
  double states = 0;
};

BranchFlop flop_of(const CcaSpec& spec, double H) {
  const double q = double(spec.q_dim()), C = double(spec.conv_channels());
  const double projections = H * (q + 2 * double(spec.kv_dim())) + q * H;
  const double convolutions = C * double(kDepthwiseTaps + spec.head_dim * kGroupedTaps);
  return {projections + convolutions, 2 * q, spec.window};
}

BranchFlop flop_of(const AttentionSpec& spec, double H) {
  const double q = double(spec.q_dim()), gate = spec.output_gate ? q : 0;
  return {H * (2 * q + 2 * double(spec.kv_dim()) + gate), 2 * q, spec.window};
}

BranchFlop flop_of(const LinearSpec& spec, double H) {
  const double heads = double(spec.num_value_heads), dk = double(spec.key_head_dim);
  double products = H * (2 * double(spec.key_dim()) + 3 * double(spec.value_dim())) +
                    double(spec.conv_taps * spec.conv_channels());
  if (spec.kind == LinearKind::kGla) products += double(LinearSpec::kGateRank) * (H + heads * dk);
  if (spec.kind == LinearKind::kGatedDelta) products += 2 * heads * H;
  // A state is written and read; by the delta rule it is read by the key too.
  const double uses = spec.kind == LinearKind::kGatedDelta ? 3 : 2;
  return {products, 0, 0, uses * heads * dk * double(spec.value_head_dim)};
}

BranchFlop flop_of(const MlpSpec& spec, double H) {
  return {3 * H * double(spec.width), 0, 0};
}

double router_products(const MlpRouterSpec& router, double H, double E) {
  const double R = double(router.width);
  return R * H + 2 * R * R + (E + 1) * R;
}
double router_products(const LinearRouterSpec&, double H, double E) {
  return E * H;
}

BranchFlop flop_of(const MoeSpec& spec, double H) {
  const double E = double(spec.num_experts), k = double(spec.experts_of_token());
  const double router =
      std::visit([&](const auto& kind) { return router_products(kind, H, E); }, spec.router);
  const double shared = 3 * H * double(spec.shared.width) + (spec.shared.gate ? H : 0);
  return {router + k * 3 * H * double(spec.width) + shared, 0, 0};
}

// Keys that the tokens of a sequence read in one block, all together.
double keys_read(int64_t sequence_length, int64_t window) {
  const double s = static_cast<double>(sequence_length);
  if (window == 0 || window >= sequence_length) return s * (s + 1) / 2;
  const double w = static_cast<double>(window);
  return w * (w + 1) / 2 + (s - w) * w;
}

}  // namespace

CcaParameters cca_parameters(const CcaSpec& m, int64_t H) {
  CcaParameters p;
  p.q_proj = H * m.q_dim();
  p.k_proj = H * m.kv_dim();
  p.v_proj = H * m.kv_dim() / 2;
  p.conv_depthwise = m.conv_channels() * (kDepthwiseTaps + 1);
  p.conv_grouped = m.conv_channels() * (m.head_dim * kGroupedTaps + 1);
  p.temp = m.num_key_heads;
  p.o_proj = m.q_dim() * H;
  p.total =
      p.q_proj + p.k_proj + 2 * p.v_proj + p.conv_depthwise + p.conv_grouped + p.temp + p.o_proj;
  return p;
}

namespace {

void add_router(const MlpRouterSpec& router, int64_t H, int64_t E, MoeParameters& p) {
  const int64_t R = router.width;
  p.router_down = R * (H + 1);
  p.router_norm = R;
  p.router_fc = R * (R + 1);
  p.router_out = (E + 1) * R;
  p.router_scale = R;
  p.buffers = E + 1;
}
void add_router(const LinearRouterSpec& router, int64_t H, int64_t E, MoeParameters& p) {
  p.router_out = E * H;
  p.buffers = router.expert_bias ? E : 0;
}

}  // namespace

MoeParameters moe_parameters(const MoeSpec& m, int64_t H) {
  const int64_t E = m.num_experts;
  MoeParameters p;
  std::visit([&](const auto& router) { add_router(router, H, E, p); }, m.router);
  p.router = p.router_down + p.router_norm + 2 * p.router_fc + p.router_out;
  p.expert = 3 * H * m.width;
  p.experts = E * p.expert;
  p.shared = 3 * H * m.shared.width + (m.shared.gate ? H : 0);
  return p;
}

ModelParameters model_parameters(const ModelSpec& model) {
  const int64_t H = model.hidden_size;
  ModelParameters p;
  int64_t active = 0;
  std::set<std::string_view> kinds;  // that were met
  for (const BlockSpec& block : model.blocks) {
    const auto add = [&](const auto& spec) {
      const BranchParameters branch = parameters_of(spec, H, kinds.insert(spec.kKind).second);
      p.blocks += branch.all;
      active += branch.active;
      p.buffers += branch.buffers;
    };
    std::visit(add, block.mixer);
    std::visit(add, block.feed_forward);
    p.norms += 2 * H;
    p.residual_scaling += block.residual == Residual::kScaled ? 8 * H : 0;
  }
  p.blocks += p.norms + p.residual_scaling;
  p.embedding = model.vocab_size * H;
  p.head = model.tied_head ? 0 : p.embedding;
  p.other = H + (model.scaled_embedding() ? 2 * H : 0);
  p.without_embedding = p.blocks + p.other;
  p.total = p.without_embedding + p.embedding + p.head;
  p.active = active + p.norms + p.residual_scaling + p.other;
  return p;
}

ModelFlop model_flop(const ModelSpec& model, int64_t sequence_length) {
  const double H = double(model.hidden_size), s = double(sequence_length);
  ModelFlop flop;
  for (const BlockSpec& block : model.blocks) {
    const auto add = [&](const auto& spec) {
      const BranchFlop branch = flop_of(spec, H);
      flop.blocks += 2 * branch.products;
      flop.attention +=
          2 * (branch.per_key * keys_read(sequence_length, branch.window) / s + branch.states);
    };
    std::visit(add, block.mixer);
    std::visit(add, block.feed_forward);
  }
  flop.head = 2 * double(model.vocab_size) * H;
  flop.forward = flop.blocks + flop.head + flop.attention;
  flop.training = 3 * flop.forward;
  return flop;
}

}  // namespace ashlar
