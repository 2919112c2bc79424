#include "ashlar/sizing/zaya.h"

namespace ashlar {
namespace {

constexpr int64_t kDepthwiseTaps = 2, kGroupedTaps = 2;

// Keys that the tokens of a sequence read in one block, all together.
double keys_read(int64_t sequence_length, int64_t window) {
  const double s = static_cast<double>(sequence_length);
  if (window == 0 || window >= sequence_length) return s * (s + 1) / 2;
  const double w = static_cast<double>(window);
  return w * (w + 1) / 2 + (s - w) * w;
}

}  // namespace

ZayaParameters zaya_parameters(const ZayaSpec& m) {
  const int64_t H = m.hidden_size, R = m.router_hidden_size, E = m.num_experts;
  const int64_t L = m.num_hidden_layers, C = m.conv_channels();
  ZayaParameters p;
  p.q_proj = H * m.q_dim();
  p.k_proj = H * m.kv_dim();
  p.v_proj = H * m.kv_dim() / 2;
  p.conv_depthwise = C * (kDepthwiseTaps + 1);
  p.conv_grouped = C * (m.head_dim * kGroupedTaps + 1);
  p.temp = m.num_key_value_heads;
  p.o_proj = m.q_dim() * H;
  p.attention =
      p.q_proj + p.k_proj + 2 * p.v_proj + p.conv_depthwise + p.conv_grouped + p.temp + p.o_proj;

  p.router_down = R * (H + 1);
  p.router_norm = R;
  p.router_fc = R * (R + 1);
  p.router_out = (E + 1) * R;
  p.router = p.router_down + p.router_norm + 2 * p.router_fc + p.router_out;
  p.router_scale = R;

  p.expert = 3 * H * m.moe_intermediate_size;
  p.experts = E * p.expert;
  p.norms = 2 * H;
  p.residual_scaling = 8 * H;
  p.block = p.attention + p.router + p.experts + p.norms + p.residual_scaling;

  p.blocks = L * p.block + (L - 1) * p.router_scale;
  p.embedding = m.vocab_size * H;
  p.other = 3 * H;
  p.total = p.blocks + p.embedding + p.other;
  p.without_embedding = p.blocks + p.other;
  p.active = p.without_embedding - L * (E - 1) * p.expert;
  p.buffers = L * (E + 1);
  return p;
}

ZayaFlop zaya_flop(const ZayaSpec& m, int64_t sequence_length) {
  const double H = double(m.hidden_size), R = double(m.router_hidden_size);
  const double C = double(m.conv_channels()), s = double(sequence_length);
  const double projections = H * double(m.qkv_dim()) + double(m.q_dim()) * H;
  const double convolutions = C * double(kDepthwiseTaps + m.head_dim * kGroupedTaps);
  const double router = R * H + 2 * R * R + double(m.num_classes()) * R;
  const double expert = 3 * H * double(m.moe_intermediate_size);
  ZayaFlop flop;
  flop.blocks = 2 * double(m.num_hidden_layers) * (projections + convolutions + router + expert);
  flop.head = 2 * double(m.vocab_size) * H;
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer)
    flop.attention += 4 * double(m.q_dim()) * keys_read(sequence_length, m.window_of(layer)) / s;
  flop.forward = flop.blocks + flop.head + flop.attention;
  flop.training = 3 * flop.forward;
  return flop;
}

}  // namespace ashlar
