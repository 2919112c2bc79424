#include "ashlar/bench/products.h"

#include <nlohmann/json.hpp>

#include "ashlar/bench/product_case.h"
#include "ashlar/core/json.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/newton_schulz.h"

namespace ashlar::bench {
namespace {

using kernels::Matrix;

// The types of results in training: of the stream, or of the products' operands.
enum class Result { kStream, kOperand };
struct Dims {
  std::string_view name;
  int64_t G, T, N, K;
  Result y = Result::kStream, dx = Result::kOperand;
  bool block_diagonal = false;  // groups of columns, else of rows
};
constexpr auto kStream = Result::kStream, kOperand = Result::kOperand;
// The products of zaya1-nano, of zaya1-small (1,024 tokens), llama-nano, moe-nano and hybrid-nano;
// 2,048 tokens, 256 at the head; experts with even loads.
constexpr Dims kProducts[] = {{"nano qkv", 1, 2048, 512, 256, kStream, kStream},
                              {"nano o", 1, 2048, 256, 256},
                              {"nano gate_up", 8, 2048, 1024, 256, kOperand},
                              {"nano down", 8, 2048, 256, 512},
                              {"nano head", 1, 256, 8192, 256, kStream, kStream},
                              {"nano conv", 6, 2048, 64, 128, kStream, kOperand, true},
                              {"small qkv", 1, 1024, 1024, 768, kStream, kStream},
                              {"small o", 1, 1024, 768, 512},
                              {"small gate_up", 16, 1024, 1536, 768, kOperand},
                              {"small down", 16, 1024, 768, 768},
                              {"small head", 1, 256, 32768, 768, kStream, kStream},
                              {"small conv", 6, 1024, 128, 256, kStream, kOperand, true},
                              {"llama qkv", 1, 2048, 1024, 512, kStream, kStream},
                              {"llama o", 1, 2048, 512, 512},
                              {"llama gate_up", 1, 2048, 2816, 512, kOperand, kStream},
                              {"llama down", 1, 2048, 512, 1408},
                              {"llama head", 1, 256, 8192, 512, kStream, kStream},
                              {"moe gate_up", 8, 4096, 1408, 512, kOperand},
                              {"moe down", 8, 4096, 512, 704},
                              {"hybrid gate_up", 1, 2048, 2560, 512, kOperand, kStream},
                              {"hybrid down", 1, 2048, 512, 1280}};
constexpr Dims kStacks[] = {{"nano gate_up", 8, 0, 1024, 256},
                            {"nano down", 8, 0, 256, 512},
                            {"nano qkv", 1, 0, 512, 256},
                            {"small gate_up", 2, 0, 1536, 768}};

ProductRow row_of(const Dims& d, std::string op) {
  return {std::string(d.name), std::move(op), d.G, d.T, d.N, d.K, {}};
}

void measure_product(Threads& threads, DType compute, const Dims& d, ProductRows& rows) {
  if (!rows.wants_any(d.name, "forward", "backward_input", "backward_weight")) return;
  ProductCase c(threads);
  const auto type = [&](Result r) { return r == kOperand ? compute : DType::kF32; };
  const int64_t columns = d.block_diagonal ? d.G : 1;
  const kernels::Operand w = c.operand(compute, {d.G, d.N, d.K});
  const Matrix x = Matrix::of(c.random(compute, {d.T, columns * d.K})),
               dy = Matrix::of(c.random(compute, {d.T, columns * d.N}));
  const Matrix y = Matrix::of(c.zeros(type(d.y), {d.T, columns * d.N})),
               dx = Matrix::of(c.zeros(type(d.dx), {d.T, columns * d.K}));
  const Tensor dw = c.zeros(DType::kF32, {d.G, d.N, d.K});
  const Tensor groups = c.groups(d.G, d.T);
  const double flop = 2.0 * double(columns * d.T) * double(d.N) * double(d.K);
  const auto& ctx = c.context();
  rows.time(row_of(d, "forward"), {compute, type(d.y), Direction::kForward}, flop, [&] {
    d.block_diagonal ? blockdiag_linear_forward(ctx, compute, x, w, y)
                     : grouped_linear_forward(ctx, compute, x, w, groups, y);
  });
  rows.time(row_of(d, "backward_input"), {compute, type(d.dx), Direction::kBackwardInput}, flop,
            [&] {
              d.block_diagonal ? blockdiag_linear_backward_input(ctx, compute, dy, w, dx)
                               : grouped_linear_backward_input(ctx, compute, dy, w, groups, dx);
            });
  rows.time(
      row_of(d, "backward_weight"), {compute, DType::kF32, Direction::kBackwardWeight}, flop, [&] {
        d.block_diagonal ? blockdiag_linear_backward_weight(ctx, compute, dy, x, dw, false)
                         : grouped_linear_backward_weight(ctx, compute, dy, x, groups, dw, false);
      });
}

void measure_newton_schulz(Threads& threads, DType compute, const Dims& d, ProductRows& rows) {
  if (!rows.wants(d.name, "newton_schulz")) return;
  ProductCase c(threads);
  const Tensor x = c.random(DType::kF32, {d.G, d.N, d.K});
  constexpr int kSteps = 5;
  const double flop =
      double(d.G * kernels::newton_schulz_flop(c.context(), compute, d.N, d.K, kSteps));
  rows.time(row_of(d, "newton_schulz"), flop,
            [&] { orthogonalize(c.context(), compute, x, kSteps); });
}

}  // namespace

ProductReport measure_products(int num_threads, DType compute, std::string_view only,
                               const std::string& peer_path) {
  ProductReport report;
  std::unique_ptr<OneDnnPeer> peer;
  report.machine = measure_beside_peak(num_threads, compute, [&](Threads& threads) {
    if (!peer_path.empty()) {
      peer = std::make_unique<OneDnnPeer>(peer_path, threads.size());
      report.peer = peer->name();
    }
    ProductRows rows(report.rows, only, peer.get());
    for (const Dims& d : kProducts) measure_product(threads, compute, d, rows);
    measure_attention(threads, compute, rows);
    for (const Dims& d : kStacks) measure_newton_schulz(threads, compute, d, rows);
  });
  ASHLAR_REQUIRE(!report.rows.empty(), kConfig,
                 "--only is {:?}; no row's shape and op hold it; leave it out to see them all",
                 only);
  return report;
}

std::string to_text(const ProductReport& report) {
  std::string text = fmt::format(
      "{}{}{}\n{:<20} {:<16} {:>3} {:>5} {:>6} {:>5} {:>9} {:>9} {:>5} {:>8} {:>6}{}\n",
      report.machine.text(), report.peer.empty() ? "" : ", beside ", report.peer, "shape", "op",
      "G", "T", "N", "K", "median_us", "min_us", "n", "GFLOP/s", "share",
      report.peer.empty() ? "" : fmt::format(" {:>8} {:>9} {:>9}", "peer", "by median", "by min"));
  for (const ProductRow& r : report.rows) {
    text += fmt::format(
        "{:<20} {:<16} {:>3} {:>5} {:>6} {:>5} {:>9.1f} {:>9.1f} {:>5} {:>8.1f} {:>5.0f}%", r.name,
        r.op, r.G, r.T, r.N, r.K, r.time.median_s * 1e6, r.time.min_s * 1e6, r.time.repeats,
        r.time.flops() * 1e-9, 100 * r.time.flops() / report.machine.peak_flops);
    if (r.peer)  // its rate, and how many times faster ours is
      text += fmt::format(" {:>8.1f} {:>9.2f} {:>9.2f}", r.peer->flops() * 1e-9,
                          r.peer->median_s / r.time.median_s, r.peer->min_s / r.time.min_s);
    text += "\n";
  }
  return text;
}

std::string to_json_line(const ProductReport& report) {
  Ordered rows = Ordered::array();
  for (const ProductRow& r : report.rows) {
    rows.push_back({{"shape", r.name},
                    {"op", r.op},
                    {"groups", r.G},
                    {"tokens", r.T},
                    {"n", r.N},
                    {"k", r.K},
                    {"flop", r.time.flop},
                    {"median_s", r.time.median_s},
                    {"min_s", r.time.min_s},
                    {"repeats", r.time.repeats}});
    if (!r.peer) continue;
    rows.back()["peer_median_s"] = r.peer->median_s;
    rows.back()["peer_min_s"] = r.peer->min_s;
  }
  return Ordered{{"bench", "products"},
                 {"isa", report.machine.isa},
                 {"compute", report.machine.compute},
                 {"threads", report.machine.threads},
                 {"peak_flops", report.machine.peak_flops},
                 {"peer", report.peer},
                 {"products", rows}}
      .dump();
}

}  // namespace ashlar::bench
