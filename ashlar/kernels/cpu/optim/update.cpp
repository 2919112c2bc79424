#include <atomic>
#include <cstring>

#include "ashlar/core/function_ref.h"
#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/drive.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/optim/update_args.h"

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kGrain = 1 << 15;     // elements of one task: four streams of it fit a private L2
constexpr int64_t kSumBlock = 4096;     // elements summed in fp32
constexpr int64_t kMaxPartials = 1024;  // fp64 partial sums of one reduction

bool fast(const Context& ctx, const Tensor& x) {
  return x.dtype == DType::kF32 && !ctx.reference;
}

// Elements of one partial sum: whole blocks, at most kMaxPartials of them; depends on n only.
int64_t partial_size(int64_t n) {
  const int64_t blocks = ceil_div(n, kSumBlock);
  const int64_t blocks_per_partial = std::max<int64_t>(16, ceil_div(blocks, kMaxPartials));
  return blocks_per_partial * kSumBlock;
}

// update(begin, end) for tasks of elements of w.  Where rows are packed, a task is a block of them,
// which is packed as soon as it has been updated.
void for_tasks(const Context& ctx, const Tensor& w, const PackedRows& packed,
               function_ref<void(int64_t begin, int64_t end)> update) {
  if (!packed.operand) return parallel_for(*ctx.threads, w.numel(), kGrain, update);
  const Operand& operand = *packed.operand;
  const gemm::Engine& engine = gemm::packing_engine(ctx, operand.forward.dtype);
  const int64_t rows = gemm::rows_packed_at_once(engine, operand), size = rows * operand.k();
  ctx.threads->run(w.numel() / size, [&](int64_t block, int) {
    update(block * size, (block + 1) * size);
    gemm::pack_row_block(engine, operand, packed.row / rows + block);
  });
}

template <typename T>
void adamw_all(const Context& ctx, const AdamW& x) {
  const AdamWFactors<T> factors = adamw_factors<T>(x.step);
  T *w = x.w.as<T>(), *m = x.m.as<T>(), *v = x.v.as<T>();
  const T* g = x.g.as<T>();
  for_tasks(ctx, x.w, x.packed, [&](int64_t i, int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      if (!ctx.reference) return adamw_fast(factors, w + i, g + i, m + i, v + i, end - i);
    }
    adamw_reference(factors, w + i, g + i, m + i, v + i, end - i);
  });
}

template <typename T>
void muon_momentum_all(const Context& ctx, const MuonMomentum& c) {
  const T mu = T(c.mu), scale = T(c.grad_scale);
  const T* g = c.g.as<T>();
  T *m = c.m.as<T>(), *x = c.x.as<T>();
  parallel_for(*ctx.threads, c.g.numel(), kGrain, [&](int64_t i, int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      if (!ctx.reference)
        return muon_momentum_fast(mu, c.nesterov, scale, g + i, m + i, x + i, end - i);
    }
    muon_momentum_reference(mu, c.nesterov, scale, g + i, m + i, x + i, end - i);
  });
}

// y = keep y + alpha x
void axpby(const Context& ctx, double alpha, const Tensor& x, double keep, const Tensor& y,
           const PackedRows& packed) {
  for_tasks(ctx, y, packed, [&](int64_t i, int64_t end) {
    const int64_t n = end - i;
    if (fast(ctx, x))
      return axpby_fast(float(alpha), x.as<float>() + i, float(keep), y.as<float>() + i, n);
    if (x.dtype == DType::kF32)
      return axpby_reference(float(alpha), x.as<float>() + i, float(keep), y.as<float>() + i, n);
    axpby_reference(alpha, x.as<double>() + i, keep, y.as<double>() + i, n);
  });
}

double sum_of_squares_reference(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}
float sum_of_squares_reference(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

template <typename T>
int64_t first_non_finite_reference(const T* x, int64_t n) {
  int64_t i = 0;
  while (i < n && std::isfinite(double(x[i]))) ++i;
  return i;
}

}  // namespace

bool packs_in_update(const Context& ctx, const PackedRows& packed, int64_t numel) {
  const Operand& w = *packed.operand;
  if (!w.forward) return false;
  const int64_t rows = gemm::rows_packed_at_once(gemm::packing_engine(ctx, w.forward.dtype), w);
  return rows > 0 && packed.row % rows == 0 && numel % (rows * w.k()) == 0;
}

void adamw(const Context& ctx, const AdamW& x) {
  if (ctx.meta()) return;
  x.w.dtype == DType::kF64 ? adamw_all<double>(ctx, x) : adamw_all<float>(ctx, x);
}

void muon_momentum(const Context& ctx, const MuonMomentum& x) {
  if (ctx.meta()) return;
  x.g.dtype == DType::kF64 ? muon_momentum_all<double>(ctx, x) : muon_momentum_all<float>(ctx, x);
}

void muon_apply(const Context& ctx, const MuonApply& x) {
  if (ctx.meta()) return;
  axpby(ctx, -x.lambda, x.x, 1 - x.lr * x.decay, x.w, x.packed);
}

void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& sum_1) {
  if (ctx.meta()) return;
  const int64_t n = x.numel(), grain = partial_size(n);
  std::array<double, kMaxPartials> partials{};
  parallel_for(*ctx.threads, n, grain, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; i += kSumBlock) {
      const int64_t count = std::min(kSumBlock, end - i);
      if (x.dtype == DType::kF64)
        sum += sum_of_squares_reference(x.as<double>() + i, count);
      else if (fast(ctx, x))
        sum += block_sum_of_squares(x.as<float>() + i, count);
      else
        sum += sum_of_squares_reference(x.as<float>() + i, count);
    }
    partials[begin / grain] = sum;
  });
  double total = 0;
  for (const double partial : partials) total += partial;
  sum_1.as<double>()[0] = total;
}

int64_t first_non_finite(const Context& ctx, const Tensor& x) {
  if (ctx.meta()) return -1;
  const int64_t n = x.numel();
  std::atomic<int64_t> first{n};
  parallel_for(*ctx.threads, n, kGrain, [&](int64_t begin, int64_t end) {
    int64_t found = end - begin;
    if (x.dtype == DType::kF64)
      found = first_non_finite_reference(x.as<double>() + begin, end - begin);
    else if (x.dtype == DType::kBF16)
      found = first_non_finite_reference(x.as<bf16>() + begin, end - begin);
    else if (fast(ctx, x))
      found = first_non_finite_fast(x.as<float>() + begin, end - begin);
    else
      found = first_non_finite_reference(x.as<float>() + begin, end - begin);
    if (found == end - begin) return;
    int64_t known = first.load();
    while (begin + found < known && !first.compare_exchange_weak(known, begin + found)) {
    }
  });
  return first.load() == n ? -1 : first.load();
}

}  // namespace ashlar::kernels::cpu
