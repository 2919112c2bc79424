// The layers of a step beside products: causal attention over the length of a document and the size
// of a head, norms, the update of AdamW, and Newton-Schulz.  Ranks compute at once.
#include <cmath>

#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/product_case.h"
#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/newton_schulz.h"
#include "ashlar/kernels/norm.h"
#include "ashlar/kernels/update.h"

namespace ashlar::bench {
namespace {

// One document of that length, 4 heads of queries and 2 of keys.
class AttentionCase {
 public:
  AttentionCase(const Rig& rig, int64_t length, int64_t D)
      : case_(rig.threads),
        sequence_(kernels::Sequence::rows(1, length)),
        x_{.shape = {.N = kQueries, .K = kKeys, .D = D, .V = D, .scale = 1 / std::sqrt(double(D))},
           .q = case_.random(rig.products(), {length, kQueries * D}),
           .k = case_.random(rig.products(), {length, kKeys * D}),
           .v = case_.random(rig.products(), {length, kKeys * D}),
           .out = case_.zeros(rig.products(), {length, kQueries * D}),
           .lse_TN = case_.zeros(DType::kF32, {length, kQueries})},
        g_{.dout = case_.random(rig.products(), {length, kQueries * D}),
           .dq = case_.zeros(DType::kF32, {length, kQueries * D}),
           .dk = case_.zeros(DType::kF32, {length, kKeys * D}),
           .dv = case_.zeros(DType::kF32, {length, kKeys * D})} {}
  void forward() { attention_forward(case_.context(), sequence_, sequence_.segments(), x_); }
  void backward() { attention_backward(case_.context(), sequence_, sequence_.segments(), x_, g_); }
  // Two products of visible pairs forward, five backward.
  double flop(int products) const {
    const auto pairs = double(kernels::visible_pairs(sequence_, sequence_.segments(), 0));
    return 2.0 * products * double(x_.shape.D * kQueries) * pairs;
  }

 private:
  static constexpr int64_t kQueries = 4, kKeys = 2;
  ProductCase case_;
  kernels::Sequence sequence_;
  kernels::Attention x_;
  kernels::AttentionGradients g_;
};

// The length at which time begins to grow like its square: compute, no longer memory, limits.
void add_crossover(const std::vector<std::pair<double, double>>& times, const std::string& what,
                   Findings& findings) {
  constexpr double kExponent = 1.5;
  for (size_t i = 1; i < times.size(); ++i) {
    const double exponent = std::log(times[i].second / times[i - 1].second) /
                            std::log(times[i].first / times[i - 1].first);
    if (exponent < kExponent) continue;
    findings.text += fmt::format("{}: time grows with length^{:.2f} from {:.0f} tokens on\n", what,
                                 exponent, times[i].first);
    return;
  }
}

void measure_attention_lengths(const Rig& rig, Findings& findings) {
  RateTable table(rig, findings, "tokens", "TFLOP/s", 1e12);
  const std::vector<int64_t> lengths =
      rig.quick ? std::vector<int64_t>{512, 2048}
                : std::vector<int64_t>{128, 256, 512, 1024, 2048, 4096, 8192};
  for (const int64_t D : rig.quick ? std::vector<int64_t>{128} : std::vector<int64_t>{64, 128}) {
    std::vector<std::pair<double, double>> times;
    for (const int64_t length : lengths) {
      AttentionCase attention(rig, length, D);
      const double flop = attention.flop(2);
      if (!table.row(fmt::format("attention forward D {}", D), double(length), flop,
                     [&] { attention.forward(); }))
        return;
      times.emplace_back(double(length), flop / table.last().median);
      if (!table.row(fmt::format("attention backward D {}", D), double(length), attention.flop(5),
                     [&] { attention.backward(); }))
        return;
    }
    add_crossover(times, fmt::format("attention forward D {}", D), findings);
  }
}

// Bytes are those of every tensor once.
void measure_bandwidth_bound(const Rig& rig, Findings& findings) {
  RateTable table(rig, findings, "elements", "GB/s", 1e9);
  const std::vector<int64_t> rows =
      rig.quick ? std::vector<int64_t>{1024} : std::vector<int64_t>{256, 1024, 4096, 16384};
  constexpr int64_t H = 1024;
  for (const int64_t T : rows) {
    ProductCase c(rig.threads);
    const Tensor h = c.random(DType::kF32, {T, H}), w = c.random(DType::kF32, {H}),
                 y = c.zeros(rig.products(), {T, H}), rstd = c.zeros(DType::kF32, {T}),
                 dy = c.random(rig.products(), {T, H}), dh = c.zeros(DType::kF32, {T, H}),
                 dw = c.zeros(DType::kF32, {H});
    const double read = double(h.bytes()), half = double(y.bytes());
    if (!table.row("norm forward", double(T * H), read + half,
                   [&] { rms_norm_forward(c.context(), 1e-5, h, w, y, rstd); }))
      return;
    const kernels::RmsNormBackward backward{
        .dy_TH = dy, .h_TH = h, .w_H = w, .rstd_T = rstd, .dh_TH = dh, .dw_H = dw};
    table.row("norm backward", double(T * H), half + 2 * read,
              [&] { rms_norm_backward(c.context(), backward); });
    const Tensor m = c.zeros(DType::kF32, {T, H}), v = c.zeros(DType::kF32, {T, H});
    const kernels::AdamW adam{
        .step = {1e-6, 0.9, 0.95, 1e-8, 0.1, 10}, .g = h, .w = dh, .m = m, .v = v};
    table.row("adamw", double(T * H), 7 * read, [&] { kernels::adamw(c.context(), adam); });
  }
}

void measure_newton_schulz_sizes(const Rig& rig, Findings& findings) {
  constexpr int kSteps = 5;
  RateTable table(rig, findings, "rows", "TFLOP/s", 1e12);
  for (const int64_t size :
       rig.quick ? std::vector<int64_t>{256} : std::vector<int64_t>{256, 512, 1024}) {
    ProductCase c(rig.threads);
    const DType compute = rig.products();
    const Tensor x = c.random(DType::kF32, {1, size, size});
    const auto flop = double(kernels::newton_schulz_flop(c.context(), compute, size, size, kSteps));
    if (!table.row("Newton-Schulz", double(size), flop,
                   [&] { kernels::orthogonalize(c.context(), compute, x, kSteps); }))
      return;
  }
}

}  // namespace

Findings measure_layers(const Rig& rig) {
  Findings findings;
  measure_attention_lengths(rig, findings);
  measure_bandwidth_bound(rig, findings);
  measure_newton_schulz_sizes(rig, findings);
  return findings;
}

}  // namespace ashlar::bench
