// Attention in rows of `bench products`: causal, one document a sequence.
#include "ashlar/kernels/attention.h"

#include <cmath>

#include "ashlar/bench/product_case.h"

namespace ashlar::bench {
namespace {

struct Heads {
  std::string_view name;
  int64_t documents, length;
  int64_t N, K, D;  // heads of queries and of keys, size of a head
};
constexpr Heads kHeads[] = {{"nano attention", 4, 512, 4, 2, 64},
                            {"llama attention", 4, 512, 8, 4, 64},
                            {"small attention", 1, 1024, 4, 2, 128},
                            {"2048 attention", 1, 2048, 8, 4, 64},
                            {"2048 D128 attention", 1, 2048, 4, 2, 128}};

void measure(Threads& threads, DType compute, const Heads& h, ProductRows& rows) {
  if (!rows.wants_any(h.name, "forward", "backward")) return;
  ProductCase c(threads);
  const auto sequence = kernels::Sequence::rows(h.documents, h.length);
  const int64_t T = sequence.num_tokens(), queries = h.N * h.D, keys = h.K * h.D;
  const kernels::Attention x{
      .shape = {.N = h.N, .K = h.K, .D = h.D, .V = h.D, .scale = 1 / std::sqrt(double(h.D))},
      .q = c.random(compute, {T, queries}),
      .k = c.random(compute, {T, keys}),
      .v = c.random(compute, {T, keys}),
      .out = c.zeros(compute, {T, queries}),
      .lse_TN = c.zeros(DType::kF32, {T, h.N})};
  const kernels::AttentionGradients g{.dout = c.random(compute, {T, queries}),
                                      .dq = c.zeros(DType::kF32, {T, queries}),
                                      .dk = c.zeros(DType::kF32, {T, keys}),
                                      .dv = c.zeros(DType::kF32, {T, keys})};
  const std::vector<Segment>& segments = sequence.segments();
  const double products =  // one product of D-vectors a visible pair and head
      2.0 * double(h.D * h.N * kernels::visible_pairs(sequence, segments, 0));
  const auto row = [&](std::string op) {
    return ProductRow{std::string(h.name), std::move(op), h.documents, T, h.N, h.D, {}};
  };
  const auto forward = [&] { attention_forward(c.context(), sequence, segments, x); };
  forward();  // fills what backward reads
  rows.time(row("forward"), 2 * products, forward);
  rows.time(row("backward"), 5 * products,
            [&] { attention_backward(c.context(), sequence, segments, x, g); });
}

}  // namespace

void measure_attention(Threads& threads, DType compute, ProductRows& rows) {
  for (const Heads& h : kHeads) measure(threads, compute, h, rows);
}

}  // namespace ashlar::bench
