// The shape, the tensors and the memory of a linear mixer.
#include <cmath>

#include "ashlar/nn/linear_attention.h"

namespace ashlar::nn {
namespace {

using kernels::Decay;

Decay decay_of(LinearKind kind) {
  switch (kind) {
    case LinearKind::kBasic:
      return Decay::kNone;
    case LinearKind::kLightning:
    case LinearKind::kRetention:
      return Decay::kHead;
    case LinearKind::kGla:
      return Decay::kChannel;
    case LinearKind::kGatedDelta:
      return Decay::kToken;
  }
  ASHLAR_ASSERT(false && "a kind without decay");
}

// MiniMax's release has its own eps in this norm, independent of the model's.
constexpr double kLightningNormEps = 1e-6;

// The logarithm of the fixed decay of value head h of V.
double log_decay_of(const LinearSpec& spec, int64_t h) {
  if (spec.kind == LinearKind::kRetention) return std::log1p(-std::exp2(-5.0 - double(h)));
  return -spec.slope_factor * std::exp2(-8.0 * double(h + 1) / double(spec.num_value_heads));
}

kernels::FeatureMap map_of(LinearMap map) {
  static constexpr kernels::FeatureMap kMaps[] = {
      kernels::FeatureMap::kIdentity, kernels::FeatureMap::kSilu, kernels::FeatureMap::kRelu,
      kernels::FeatureMap::kEluPlusOne};
  return kMaps[size_t(map)];
}

Section key_heads(const LinearSpec& m, int64_t begin, int64_t size) {
  return {Grain::kStateHead, m.num_key_heads, size, begin, m.num_key_heads * size};
}

}  // namespace

LinearShape LinearShape::of(const LinearSpec& m, double norm_eps, const Share& share) {
  const Portion keys = share.of(Grain::kStateHead, m.num_key_heads);
  const int64_t group = m.num_value_heads / m.num_key_heads;
  const bool lightning = m.kind == LinearKind::kLightning;
  LinearShape shape;
  shape.kind = m.kind, shape.decay = decay_of(m.kind), shape.taps = m.conv_taps;
  shape.causal = m.causal;
  shape.heads = {.K = keys.size(),
                 .H = keys.size() * group,
                 .dk = m.key_head_dim,
                 .dv = m.value_head_dim,
                 .keys = lightning ? kernels::FeatureMap::kSilu : map_of(m.map),
                 .values = lightning ? kernels::FeatureMap::kSilu : kernels::FeatureMap::kIdentity,
                 .unit_keys = shape.delta()};
  const int64_t values = shape.value_dim();
  shape.norm = {.G = lightning ? 1 : shape.heads.H,
                .D = lightning ? values : m.value_head_dim,
                .mean_over = lightning ? m.value_dim() : m.value_head_dim,
                .shared_weight = !lightning,
                .eps = lightning ? kLightningNormEps : norm_eps,
                .gate = lightning ? kernels::OutputGate::kSigmoid : kernels::OutputGate::kSilu};
  shape.scale = lightning ? 1.0 : 1.0 / std::sqrt(double(m.key_head_dim));
  if (shape.decay == Decay::kHead)
    for (int64_t h = keys.begin * group; h < keys.end * group; ++h)
      shape.log_decay_V.push_back(log_decay_of(m, h));
  return shape;
}

void LinearWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& m = std::get<LinearSpec>(layer.of_block().mixer);
  shape = LinearShape::of(m, layer.model.norm_eps, layer.share);
  const int64_t H = layer.model.hidden_size, V = m.num_value_heads, group = V / m.num_key_heads;
  const int64_t dk = m.key_head_dim, dv = m.value_head_dim, key = m.key_dim(),
                value = m.value_dim();
  const auto rows = [&](const char* name, int64_t size, int64_t columns) {
    return layer.matrix(name, {m.num_key_heads * size, columns}, layer.normal(),
                        {0, {key_heads(m, 0, size)}});
  };
  const auto vector = [&](const char* name, int64_t size, InitRule init) {
    return ParameterInfo{.name = layer.prefix + name,
                         .shape = {m.num_key_heads * size},
                         .init = init,
                         .cuts = {{0, {key_heads(m, 0, size)}}}};
  };
  const int64_t width = shape.heads.width();
  visit({.weight = &qkv,
         .logical = {rows("q_proj.weight", dk, H), rows("k_proj.weight", dk, H),
                     rows("v_proj.weight", group * dv, H)},
         .operand_shape = {width, H}});
  if (shape.taps > 0)
    visit({.weight = &conv,
           .logical = {{.name = layer.prefix + "conv.weight",
                        .shape = {m.conv_channels(), 1, shape.taps},
                        .init = {InitRule::Kind::kUniform, 1.0 / std::sqrt(double(shape.taps))},
                        .cuts = {{0,
                                  {key_heads(m, 0, dk), key_heads(m, key, dk),
                                   key_heads(m, 2 * key, group * dv)}}}}}});
  if (shape.kind == LinearKind::kGla) {
    const int64_t rank = LinearSpec::kGateRank, channels = group * dk;
    ParameterInfo down = layer.matrix("decay_down.weight", {rank, H}, layer.normal(), {0, {}});
    down.cuts.clear();
    visit({.weight = &decay_down, .logical = {down}, .operand_shape = {rank, H}});
    visit({.weight = &decay_up,
           .logical = {rows("decay_up.weight", channels, rank)},
           .operand_shape = {shape.decay_dim(), rank}});
    visit({.weight = &decay_bias,
           .logical = {vector("decay_bias", channels, LayerSpec::constant(0.0))}});
  }
  if (shape.delta()) {
    visit({.weight = &ba,
           .logical = {rows("b_proj.weight", group, H), rows("a_proj.weight", group, H)},
           .operand_shape = {2 * shape.heads.H, H}});
    constexpr double kMostA = 16.0;
    visit({.weight = &a_log,
           .logical = {vector("A_log", group, {InitRule::Kind::kLogUniform, kMostA})}});
    visit({.weight = &dt_bias, .logical = {vector("dt_bias", group, LayerSpec::constant(1.0))}});
  }
  visit({.weight = &gate,
         .logical = {rows("gate_proj.weight", group * dv, H)},
         .operand_shape = {shape.value_dim(), H}});
  if (shape.norm.shared_weight)
    visit({.weight = &norm,
           .logical = {{.name = layer.prefix + "norm.weight",
                        .shape = {dv},
                        .init = LayerSpec::constant(1.0),
                        .applied = Applied::kHeads}}});
  else
    visit({.weight = &norm,
           .logical = {vector("norm.weight", group * dv, LayerSpec::constant(1.0))}});
  visit({.weight = &o_proj,
         .logical = {layer.matrix("o_proj.weight", {H, value}, layer.output(),
                                  {1, {key_heads(m, 0, group * dv)}})},
         .operand_shape = {H, shape.value_dim()}});
}

LinearSaved LinearSaved::make(const SavedArenas& arenas, const LinearShape& shape,
                              const Types& types, const PassShape& pass) {
  Arena& arena = arenas.block;
  const auto [stream, wide, activation, compute] = types;
  const int64_t T = pass.num_tokens, width = shape.heads.width(), values = shape.value_dim();
  LinearSaved s;
  const bool convolves = shape.taps > 0;
  s.qkv = arena.take(activation, {T, width});
  if (convolves) {
    s.halo = arena.take(wide, {pass.num_halos, shape.taps - 1, width});
    s.convolved = arena.take(activation, {T, width});
  }
  s.qhat = arena.take(activation, {T, shape.key_dim()});
  s.khat = arena.take(activation, {T, shape.key_dim()});
  s.vhat = arena.take(activation, {T, values});
  if (shape.heads.unit_keys) {
    s.rstd_q = arena.take(wide, {T, shape.heads.K});
    s.rstd_k = arena.take(wide, {T, shape.heads.K});
  }
  if (shape.kind == LinearKind::kGla) {
    s.low = arena.take(activation, {T, LinearSpec::kGateRank});
    s.gates = arena.take(wide, {T, shape.decay_dim()});
  }
  if (shape.delta()) {
    s.gates = arena.take(wide, {T, 2 * shape.heads.H});
    s.beta = arena.take(wide, {T, shape.heads.H});
  }
  if (shape.gated()) s.log_decay = arena.take(wide, {T, shape.decay_dim()});
  if (pass.backward && shape.causal)
    s.kept = arena.take(wide, shape.states(kernels::Recurrence::num_kept(T)));
  s.att = arena.take(wide, {T, values});
  s.squares = arena.take(wide, {T, shape.norm.G});
  s.z = arena.take(activation, {T, values});
  s.y = arena.take(activation, {T, values});
  if (pass.num_chunks > 0) {
    s.entering = arenas.lasting.take(wide, shape.states(shape.ways() * pass.num_chunks));
    if (shape.gated())
      s.transitions = arenas.lasting.take(
          wide,
          transition_shape(shape.recurrence(), shape.decay, shape.delta(), pass.num_all_chunks));
  }
  return s;
}

}  // namespace ashlar::nn
