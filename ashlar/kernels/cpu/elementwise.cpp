#include "ashlar/kernels/cpu/elementwise.h"

#include <algorithm>

#include "ashlar/core/rounding.h"

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kColumnsPerTask = 256;

int64_t num_columns(std::initializer_list<Tensor> gradients) {
  int64_t sum = 0;
  for (const Tensor& g : gradients) sum += g.numel();
  return sum;
}

Tensor take_partials(const Context& ctx, DType dtype, int64_t num_tokens,
                     std::initializer_list<Tensor> gradients, int64_t scratch) {
  const int64_t num_tasks = ceil_div(num_tokens, kTokensPerTask);
  for (const Tensor& g : gradients) ASHLAR_ASSERT(!g || g.dtype == dtype);
  return ctx.workspace->take(dtype, {num_tasks, num_columns(gradients) + scratch});
}

// gradient[c] += sum over rows, in order, of partials[row, offset + c].
template <typename T>
void add_rows(const Context& ctx, const Tensor& partials, int64_t offset, const Tensor& gradient) {
  const int64_t rows = partials.shape[0], stride = partials.shape[1];
  const T* from = partials.as<T>() + offset;
  T* to = gradient.as<T>();
  parallel_for(*ctx.threads, gradient.numel(), kColumnsPerTask, [&](int64_t begin, int64_t end) {
    T sum[kColumnsPerTask] = {};
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t c = begin; c < end; ++c) sum[c - begin] += from[row * stride + c];
    for (int64_t c = begin; c < end; ++c) to[c] += sum[c - begin];
  });
}

}  // namespace

void for_tokens(const Context& ctx, int64_t num_tokens, function_ref<void(int64_t, int64_t)> body) {
  if (ctx.meta()) return;
  parallel_for(*ctx.threads, num_tokens, kTokensPerTask, body);
}

template <typename T>
void sum_over_tokens(const Context& ctx, int64_t num_tokens,
                     std::initializer_list<Tensor> gradients,
                     function_ref<void(int64_t, int64_t, T*)> body, int64_t scratch) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials = take_partials(ctx, dtype_of<T>, num_tokens, gradients, scratch);
  if (ctx.meta()) return;
  const int64_t columns = partials.shape[1];
  for_tokens(ctx, num_tokens, [&](int64_t begin, int64_t end) {
    T* partial = partials.as<T>() + begin / kTokensPerTask * columns;
    std::fill(partial, partial + columns, T(0));
    body(begin, end, partial);
  });
  int64_t offset = 0;
  for (const Tensor& gradient : gradients) {
    if (gradient) add_rows<T>(ctx, partials, offset, gradient);
    offset += gradient.numel();
  }
}
template void sum_over_tokens<float>(const Context&, int64_t, std::initializer_list<Tensor>,
                                     function_ref<void(int64_t, int64_t, float*)>, int64_t);
template void sum_over_tokens<double>(const Context&, int64_t, std::initializer_list<Tensor>,
                                      function_ref<void(int64_t, int64_t, double*)>, int64_t);

}  // namespace ashlar::kernels::cpu
