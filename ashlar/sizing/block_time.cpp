#include "ashlar/sizing/block_time.h"

#include <algorithm>

namespace ashlar::sizing {
namespace {

// Adds up kernels.
class Kernels {
 public:
  Kernels(const MachineRates& rates, bool bf16)
      : rates_(rates), bf16_(bf16), a_(bf16 ? 2 : kStreamBytes) {}
  double a() const { return a_; }

  // A kernel that moves `bytes`; one that computes more than it moves is a product.
  void moves(double bytes, double flop = 0) {
    s += std::max(rates_.memory_s(bytes), flop > bytes ? rates_.fp32_product_s(flop) : 0.0);
  }
  // [rows, depth] x [depth, cols], for each of `groups` weights; out: bytes of a result's element.
  void product(double rows, double cols, double depth, double out, double groups = 1) {
    work(2 * rows * cols * depth,
         rows * depth * a_ + groups * cols * depth * a_ + rows * cols * out);
  }
  void input_gradient(double rows, double cols, double depth, double out, double groups = 1) {
    work(2 * rows * cols * depth,
         rows * depth * out + groups * cols * depth * a_ + rows * cols * a_);
  }
  void weight_gradient(double rows, double cols, double depth, double groups = 1) {
    const double before_s = s;
    work(2 * rows * cols * depth,
         rows * depth * a_ + groups * cols * depth * kStreamBytes + rows * cols * a_);
    s = before_s + (s - before_s) * trained;
  }
  void attention(double flop, double bytes) {
    s += std::max(rates_.attention_s(flop), rates_.memory_s(bytes));
  }
  // A product of another form.
  void work(double flop, double bytes) {
    const double product_s = bf16_ ? rates_.product_s(flop) : rates_.fp32_product_s(flop);
    s += std::max(flop > bytes ? product_s : 0.0, rates_.memory_s(bytes));
  }
  double s = 0;
  double trained = 1;  // the share of the weights whose gradients are needed

 private:
  const MachineRates& rates_;
  const bool bf16_;
  const double a_;
};

// Pairs of queries and keys that a rank sees.
double pairs(const RankPass& pass, double window) {
  const double S = pass.sequence, w = window > 0 ? std::min(window, S) : S;
  return pass.rows * (w * (w + 1) / 2 + (S - w) * w) / pass.cp * (window > 0 ? 1 : pass.busiest);
}

void attend(Kernels& forward, Kernels& backward, const RankPass& pass, double q, double kv,
            double heads, double window) {
  const double T = pass.tokens, a = forward.a(), P = pairs(pass, window);
  const double keys = T * pass.cp * 2 * kv;  // all that its queries may read
  forward.attention(4 * q * P, (2 * T * q + keys) * a + T * heads * kStreamBytes);
  backward.attention(10 * q * P, (3 * T * q + keys) * a + (T * q + keys) * kStreamBytes +
                                     T * heads * kStreamBytes);
}

void mixer(Kernels& f, Kernels& b, const AttentionSpec& spec, double H, const RankPass& p) {
  const double T = p.tokens, q = double(spec.q_dim()) / p.tp, a = f.a();
  const double kv = std::max(double(spec.kv_dim()) / p.tp, double(spec.head_dim));
  const double gate = spec.output_gate ? q : 0, all = q + 2 * kv + gate;
  f.product(T, all, H, a);
  f.moves(2 * T * (q + 2 * kv) * a);
  attend(f, b, p, q, kv, q / double(spec.head_dim), double(spec.window));
  if (gate > 0) f.moves(3 * T * q * a), b.moves(5 * T * q * a);
  f.product(T, H, q, a);
  b.input_gradient(T, H, q, a);
  b.weight_gradient(T, H, q);
  b.moves(T * (q + 2 * kv) * (a + kStreamBytes + (spec.qk_norm == QkNorm::kRms ? a : 0)));
  b.input_gradient(T, all, H, a);
  b.weight_gradient(T, all, H);
}

void mixer(Kernels& f, Kernels& b, const CcaSpec& spec, double H, const RankPass& p) {
  const double T = p.tokens, D = double(spec.head_dim), a = f.a();
  const double q = double(spec.q_dim()) / p.tp, kv = std::max(double(spec.kv_dim()) / p.tp, D);
  const double C = q + kv, all = q + 2 * kv, heads = C / D;
  f.product(T, all, H, a);
  f.moves(T * C * (a + kStreamBytes), 6 * T * C);
  f.work(4 * T * C * D, T * C * (a + kStreamBytes));  // grouped convolution, two taps
  f.moves(T * ((2 * all + C) * a + heads * kStreamBytes), 14 * T * C);
  attend(f, b, p, q, kv, q / D, double(spec.window));
  f.product(T, H, q, a);
  b.input_gradient(T, H, q, a);
  b.weight_gradient(T, H, q);
  b.moves(T * (2 * (all + C) * a + all * kStreamBytes), 30 * T * C);
  b.work(4 * T * C * D, T * C * (a + kStreamBytes));
  b.work(4 * T * C * D, T * C * (a + kStreamBytes));
  b.moves(T * C * (a + 2 * kStreamBytes), 14 * T * C);
  b.input_gradient(T, all, H, a);
  b.weight_gradient(T, all, H);
}

void mixer(Kernels& f, Kernels& b, const LinearSpec& spec, double H, const RankPass& p) {
  constexpr double kTile = 64;
  const double T = p.tokens, a = f.a(), dk = double(spec.key_head_dim),
               dv = double(spec.value_head_dim);
  const double heads = double(spec.num_value_heads) / p.tp, v = heads * dv;
  const double C = 2 * double(spec.key_dim()) / p.tp + v;
  const bool delta = spec.kind == LinearKind::kGatedDelta;
  const double rank = spec.kind == LinearKind::kGla ? double(LinearSpec::kGateRank) : 0;
  f.product(T, C, H, a);
  f.product(T, v, H, a);
  if (delta) f.product(T, 2 * heads, H, kStreamBytes), b.input_gradient(T, 2 * heads, H, a);
  if (rank > 0) f.product(T, rank, H, a), f.product(T, heads * dk, rank, kStreamBytes);
  if (spec.conv_taps > 0) {
    const double taps = double(spec.conv_taps);
    f.moves(2 * T * C * a, (2 * taps + 4) * T * C);
    b.moves(T * C * (2 * a + kStreamBytes) - T * C * a, (6 * taps + 10) * T * C);
  }
  f.moves(T * C * 2 * a, 8 * T * C);
  b.moves(T * C * (2 * a + kStreamBytes), 16 * T * C);
  const double forward =
      kTile * (dk + dv) + 4 * dk * dv + (delta ? kTile * (dk + dv) + 2 * dk * dv : 0);
  const double backward = 3 * kTile * dk + 2 * kTile * dv + 10 * dk * dv +
                          (delta ? 3 * kTile * (dk + dv) + 6 * dk * dv : 0);
  f.attention(T * heads * forward, T * (C * a + v * kStreamBytes + 2 * heads * kStreamBytes));
  b.attention(T * heads * backward,
              T * (C * (a + kStreamBytes) + v * kStreamBytes + 4 * heads * kStreamBytes));
  f.moves(T * v * kStreamBytes, T * v);
  f.moves(T * v * (2 * a + kStreamBytes), 8 * T * v);
  b.moves(T * v * (2 * a + kStreamBytes), 8 * T * v);
  b.moves(T * v * (a + 3 * kStreamBytes), 16 * T * v);
  f.product(T, H, v, a);
  b.input_gradient(T, H, v, a);
  b.weight_gradient(T, H, v);
  b.input_gradient(T, C, H, a);
  b.input_gradient(T, v, H, a);
  b.moves(3 * T * H * a);  // inputs of several products, added
  b.moves(3 * T * C * a / 2);
  for (const double cols : {C, v, delta ? 2 * heads : 0.0})
    if (cols > 0) b.weight_gradient(T, cols, H);
}

void feed_forward(Kernels& f, Kernels& b, double T, double F, double H) {
  const double a = f.a();
  f.product(T, 2 * F, H, a);
  f.moves(3 * T * F * a, 5 * T * F);
  f.product(T, H, F, a);
  b.input_gradient(T, H, F, a);
  b.weight_gradient(T, H, F);
  b.moves(5 * T * F * a, 11 * T * F);
  b.input_gradient(T, 2 * F, H, a);
  b.weight_gradient(T, 2 * F, H);
}

void route(Kernels& f, Kernels& b, const MlpRouterSpec& router, double H, double E, double T) {
  const double R = double(router.width), a = f.a();
  for (const auto& [cols, depth] : {std::pair{R, H}, {R, R}, {R, R}, {E + 1, R}}) {
    f.product(T, cols, depth, kStreamBytes);
    b.input_gradient(T, cols, depth, depth == H ? a : kStreamBytes);
    b.weight_gradient(T, cols, depth);
  }
  f.moves(14 * T * R);
  f.moves(2 * T * R * (a + kStreamBytes));
  f.moves(8 * T * (E + 2));
  b.moves(26 * T * R);
  b.moves(2 * T * R * (a + 2 * kStreamBytes));
  b.moves(6 * T * (E + 2));
}

void route(Kernels& f, Kernels& b, const LinearRouterSpec&, double H, double E, double T) {
  f.product(T, E, H, kStreamBytes);
  f.moves(2 * T * E * kStreamBytes + 20 * T);
  b.moves(2 * T * E * kStreamBytes + 12 * T);
  b.input_gradient(T, E, H, f.a());
  b.weight_gradient(T, E, H);
}

void experts(Kernels& f, Kernels& b, const MoeSpec& moe, double H, const RankPass& p) {
  const double rows = p.tokens * double(moe.experts_of_token()), a = f.a();
  const double E = double(moe.num_experts) / p.ep, F = double(moe.width) / p.tp;
  f.product(rows, 2 * F, H, a, E);
  f.moves(3 * rows * F * a, 5 * rows * F);
  f.product(rows, H, F, a, E);
  b.input_gradient(rows, H, F, a, E);
  b.weight_gradient(rows, H, F, E);
  b.moves(5 * rows * F * a, 11 * rows * F);
  b.input_gradient(rows, 2 * F, H, a, E);
  b.weight_gradient(rows, 2 * F, H, E);
}

// The products of adapters: x A^T and its product with B; backward x A^T again, these two of the
// gradients, and the gradients of A and B.
void adapters(Kernels& f, Kernels& b, const BlockTuning& tuning, BlockPart part, double rows,
              double groups, const RankPass& p) {
  const double a = f.a(), r = tuning.rank;
  b.trained = 1;
  for (const MatrixStack& m : tuning.adapted) {
    if (m.part != part) continue;
    const double K = m.cols_here(p.tp), N = m.rows_here(p.tp);
    f.product(rows, r, K, a, groups);
    f.product(rows, N, r, a, groups);
    f.moves(rows * N * a);  // added to the layer's output
    b.product(rows, r, K, a, groups);
    b.input_gradient(rows, N, r, a, groups);
    b.weight_gradient(rows, N, r, groups);
    b.input_gradient(rows, r, K, a, groups);
    b.moves(rows * K * a);
    b.weight_gradient(rows, r, K, groups);
  }
}

// Plans, gathers and sums of rows.
void moe_rows(Kernels& f, Kernels& b, double T, double k, double H) {
  const double a = f.a();
  f.moves(2 * T * k * H * a);
  f.moves((k + 1) * T * H * a);
  b.moves((2 * k + 1) * T * H * a);
  b.moves(T * H * (k * a + kStreamBytes));
}

// The last product of a feed-forward, and the sum of a token's experts.
void add_output(Kernels& f, const FeedForwardSpec& feed_forward, double H, const RankPass& p) {
  if (const auto* mlp = std::get_if<MlpSpec>(&feed_forward))
    return f.product(p.tokens, H, double(mlp->width) / p.tp, f.a());
  const auto& moe = std::get<MoeSpec>(feed_forward);
  const double k = double(moe.experts_of_token());
  f.moves((k + 1) * p.tokens * H * f.a());
}

}  // namespace

BlockTime block_time(const BlockSpec& block, const BlockTuning& tuning, double H,
                     const RankPass& pass, bool bf16, const MachineRates& rates) {
  BlockTime time;
  const double T = pass.tokens, s = pass.stream_bytes;
  Kernels mixer_f(rates, bf16), mixer_b = mixer_f;
  mixer_b.trained = tuning.trained_share(BlockPart::kMixer);
  std::visit([&](const auto& spec) { mixer(mixer_f, mixer_b, spec, H, pass); }, block.mixer);
  adapters(mixer_f, mixer_b, tuning, BlockPart::kMixer, T, 1, pass);
  Kernels feed_f(rates, bf16), feed_b = feed_f, merge_f = feed_f, merge_b = feed_f;
  const double a = feed_f.a();
  const auto dense = [&](double width) {
    feed_b.trained = tuning.trained_share(BlockPart::kMlp);
    feed_forward(feed_f, feed_b, T, width / pass.tp, H);
    adapters(feed_f, feed_b, tuning, BlockPart::kMlp, T, 1, pass);
  };
  if (const auto* mlp = std::get_if<MlpSpec>(&block.feed_forward)) {
    dense(double(mlp->width));
  } else {
    const auto& moe = std::get<MoeSpec>(block.feed_forward);
    const double E = double(moe.num_experts), k = double(moe.experts_of_token());
    feed_b.trained = tuning.trained_share(BlockPart::kRouter);
    std::visit([&](const auto& router) { route(feed_f, feed_b, router, H, E, T); }, moe.router);
    adapters(feed_f, feed_b, tuning, BlockPart::kRouter, T, 1, pass);
    moe_rows(feed_f, feed_b, T, k, H);
    if (moe.shared.width > 0) dense(double(moe.shared.width));
    const double before_f = feed_f.s, before_b = feed_b.s;
    feed_b.trained = tuning.trained_share(BlockPart::kExperts);
    experts(feed_f, feed_b, moe, H, pass);
    adapters(feed_f, feed_b, tuning, BlockPart::kExperts, T * k, E / pass.ep, pass);
    time.experts_forward_s = feed_f.s - before_f;
    time.experts_backward_s = feed_b.s - before_b;
  }
  for (int merge = 0; merge < 2; ++merge) {
    merge_f.moves(pass.merged * H * (2 * s + 2 * a));
    merge_b.moves(pass.merged * H * (3 * s + 2 * a + (block.reads_summands() ? a : 0)),
                  22 * pass.merged * H);
  }
  // The stream after the block is known; only scaled merges read the feed-forward's output again.
  Kernels again = merge_f;
  again.s = 0;
  again.moves(pass.merged * H * (s + a));
  time.recompute_s = mixer_f.s + feed_f.s + merge_f.s / 2 + again.s;
  if (!block.reads_summands()) {
    Kernels output = again;
    output.s = 0;
    add_output(output, block.feed_forward, H, pass);
    time.recompute_s -= output.s;
  }
  time.mixer_forward_s = mixer_f.s, time.mixer_backward_s = mixer_b.s;
  time.feed_forward_s = feed_f.s, time.feed_backward_s = feed_b.s;
  time.merges_forward_s = merge_f.s, time.merges_backward_s = merge_b.s;
  return time;
}

EndTime end_time(const ModelSpec& model, const ModelTuning& tuning, const RankPass& pass, bool bf16,
                 const MachineRates& rates) {
  constexpr double kMostLogits = double(int64_t{16} << 20);
  const double T = pass.merged, H = double(model.hidden_size), V = double(model.vocab_size);
  const bool products_bf16 = bf16 && !model.head_fp32;
  Kernels input(rates, bf16), input_backward = input, loss(rates, products_bf16);
  const double a = input.a(), s = pass.stream_bytes;
  input.moves(T * H * (kStreamBytes + s));
  input.moves(T * H * (s + a));
  input_backward.moves(T * H * (3 * s + a));
  const double reads = model.scaled_embedding() ? 2 : 1;
  if (tuning.embedding) input_backward.moves(T * H * (reads * s + (reads + 1) * kStreamBytes));
  const double chunk =
      std::min(T, std::clamp(double(int64_t(kMostLogits / V) / 64 * 64), 64.0, 256.0));
  loss.product(chunk, V, H, kStreamBytes);
  loss.moves(chunk * V * (2 * kStreamBytes + loss.a()), 6 * chunk * V);
  loss.input_gradient(chunk, V, H, loss.a());
  if (tuning.head) loss.weight_gradient(chunk, V, H);
  return {input.s, input_backward.s, loss.s * T / chunk};
}

double newton_schulz_flop(double rows, double cols, double steps, bool symmetric) {
  const double m = std::min(rows, cols), n = std::max(rows, cols);
  return steps * m * m * (symmetric ? 3 * n + m : 4 * n + 2 * m);
}

}  // namespace ashlar::sizing
