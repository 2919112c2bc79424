// The rates of single products and of memory, on which floors stand (floors.h).
#include <algorithm>

#include "ashlar/bench/floors.h"
#include "ashlar/bench/product_case.h"
#include "ashlar/core/clock.h"
#include "ashlar/kernels/linear.h"

namespace ashlar::bench {
namespace {

using kernels::Matrix;

// The fastest of many calls; at least 3, the first of which warms up.
double fastest_s(double seconds, function_ref<void()> body) {
  double best = 1e300;
  const auto start = Clock::now();
  for (int call = 0; call < 3 || seconds_since(start) < seconds; ++call) {
    const auto begin = Clock::now();
    body();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

// The slower forward, backward_input and backward_weight do not count.
double best_direction_s(const ProductCase& c, DType compute, const ProductShape& s,
                        const kernels::Operand& w, const Matrix& x, const Matrix& dy,
                        const Matrix& y, const Matrix& dx, const Tensor& dw, const Tensor& groups) {
  constexpr double kSeconds = 0.01;
  const kernels::Context& ctx = c.context();
  const auto time = [&](auto dense, auto blocks, auto grouped) {
    return fastest_s(kSeconds, [&] { s.own_columns ? blocks() : s.G == 1 ? dense() : grouped(); });
  };
  return std::min(
      {time([&] { linear_forward(ctx, compute, x, w, y); },
            [&] { blockdiag_linear_forward(ctx, compute, x, w, y); },
            [&] { grouped_linear_forward(ctx, compute, x, w, groups, y); }),
       time([&] { linear_backward_input(ctx, compute, dy, w, dx); },
            [&] { blockdiag_linear_backward_input(ctx, compute, dy, w, dx); },
            [&] { grouped_linear_backward_input(ctx, compute, dy, w, groups, dx); }),
       time([&] { linear_backward_weight(ctx, compute, dy, x, dw, false); },
            [&] { blockdiag_linear_backward_weight(ctx, compute, dy, x, dw, false); },
            [&] { grouped_linear_backward_weight(ctx, compute, dy, x, groups, dw, false); })});
}

}  // namespace

double measure_product(Threads& threads, DType compute, const ProductShape& s) {
  ProductCase c(threads);
  const int64_t columns = s.own_columns ? s.G : 1;
  const Shape stack = s.G == 1 ? Shape{s.N, s.K} : Shape{s.G, s.N, s.K};
  const kernels::Operand w = c.operand(compute, stack);
  const Matrix x = Matrix::of(c.random(compute, {s.T, columns * s.K})),
               dy = Matrix::of(c.random(compute, {s.T, columns * s.N})),
               y = Matrix::of(c.zeros(DType::kF32, {s.T, columns * s.N})),
               dx = Matrix::of(c.zeros(DType::kF32, {s.T, columns * s.K}));
  const Tensor dw = c.zeros(DType::kF32, stack), groups = c.groups(s.G, s.T);
  return s.flop() / best_direction_s(c, compute, s, w, x, dy, y, dx, dw, groups);
}

MemoryRates measure_memory(Threads& threads, int64_t most_bytes) {
  constexpr int64_t kLeast = int64_t{1} << 18, kFactor = 2;
  constexpr double kSeconds = 0.004;
  ProductCase c(threads);
  const Tensor from = c.zeros(DType::kF32, {most_bytes / 8}),
               to = c.zeros(DType::kF32, {most_bytes / 8});
  kernels::fill(c.context(), from, 1.0);
  kernels::fill(c.context(), to, 1.0);
  MemoryRates rates;
  for (int64_t bytes = kLeast; bytes <= most_bytes; bytes *= kFactor) {
    const int64_t copied = bytes / 8, added = bytes / 12;  // elements: read and written; twice read
    const double copy_s = fastest_s(
        kSeconds, [&] { kernels::copy(c.context(), from.slice(0, copied), to.slice(0, copied)); });
    const double add_s = fastest_s(
        kSeconds, [&] { kernels::add(c.context(), from.slice(0, added), to.slice(0, added)); });
    rates.list.push_back({bytes, std::max(1.5 * double(bytes) / copy_s, double(bytes) / add_s)});
  }
  return rates;
}

}  // namespace ashlar::bench
