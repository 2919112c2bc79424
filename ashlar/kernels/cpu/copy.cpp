#include <algorithm>
#include <bit>
#include <cstring>

#include "ashlar/kernels/cpu/copy_args.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/tensor/box_order.h"

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kTaskBytes = 256 << 10;  // written by one task

std::byte* at(const Matrix& m, int64_t row, int64_t col) {
  return m.data + (row * m.stride + col) * size_of(m.dtype);
}

bool is_dense(const Matrix& m) {
  return m.rows == 1 || m.stride == m.cols;
}

Matrix as_one_row(const Matrix& m) {
  return {m.data, m.dtype, 1, m.rows * m.cols, m.rows * m.cols};
}

// body(row, col, count) for parts of rows of a rows x cols matrix, in tasks.
void for_each_part(const Context& ctx, int64_t rows, int64_t cols, DType written,
                   function_ref<void(int64_t row, int64_t col, int64_t count)> body) {
  parallel_for(*ctx.threads, rows * cols, kTaskBytes / size_of(written),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end;) {
                   const int64_t row = i / cols, col = i % cols;
                   const int64_t count = std::min(end - i, cols - col);
                   body(row, col, count);
                   i += count;
                 }
               });
}

void copy_elements(const Context& ctx, const Matrix& from, int64_t from_row, const Matrix& to,
                   int64_t to_row, int64_t col, int64_t count) {
  const Tensor in{at(from, from_row, col), from.dtype, ctx.device, {count}};
  const Tensor out{at(to, to_row, col), to.dtype, ctx.device, {count}};
  const bool is_fast = !ctx.reference;
  if (is_fast && in.dtype == DType::kF32 && out.dtype == DType::kBF16)
    return round_fast(in.as<float>(), out.as<bf16>(), count);
  if (is_fast && in.dtype == DType::kBF16 && out.dtype == DType::kF32)
    return widen_fast(in.as<bf16>(), out.as<float>(), count);
  copy_convert(in, out);
}

template <typename From, typename To = From>
void add_elements(const std::byte* from, std::byte* to, int64_t count) {
  const From* in = reinterpret_cast<const From*>(from);
  To* out = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) out[i] = To(From(out[i]) + in[i]);
}

template <typename T, typename Wide = T>
void scale_elements(T* x, double factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = T(Wide(x[i]) * Wide(factor));
}

// use(element of the packed memory, element of the memory of runs, length) for every run.
template <typename Use>
void for_each_run_of(const Context& ctx, const BoxRange& range, DType dtype, Use use) {
  parallel_for(*ctx.threads, range.length, kTaskBytes / size_of(dtype),
               [&](int64_t begin, int64_t end) {
                 int64_t packed = begin;
                 for_each_run(range.tensor, range.box, range.begin + begin, range.begin + end,
                              [&](int64_t index, int64_t length) {
                                use(packed, index - range.first, length);
                                packed += length;
                              });
               });
}

template <typename From, typename To>
void download_from(const Context& ctx, const Tensor& from, std::span<To> to) {
  if (ctx.meta()) return;
  const std::span<const From> elements = from.span<const From>();
  ASHLAR_ASSERT(elements.size() == to.size());
  std::copy(elements.begin(), elements.end(), to.begin());
}

}  // namespace

void copy(const Context& ctx, const Matrix& from, const Matrix& to) {
  if (ctx.meta() || to.rows * to.cols == 0) return;
  if (to.rows > 1 && is_dense(from) && is_dense(to))
    return cpu::copy(ctx, as_one_row(from), as_one_row(to));
  for_each_part(ctx, to.rows, to.cols, to.dtype, [&](int64_t row, int64_t col, int64_t count) {
    copy_elements(ctx, from, row, to, row, col, count);
  });
}

void add(const Context& ctx, const Matrix& from, const Matrix& to) {
  if (ctx.meta() || to.rows * to.cols == 0) return;
  if (to.rows > 1 && is_dense(from) && is_dense(to))
    return cpu::add(ctx, as_one_row(from), as_one_row(to));
  const auto add_part = to.dtype == DType::kF64    ? add_elements<double>
                        : to.dtype == DType::kF32  ? add_elements<float>
                        : to.dtype == DType::kBF16 ? add_elements<float, bf16>
                                                   : add_elements<int64_t>;
  for_each_part(ctx, to.rows, to.cols, to.dtype, [&](int64_t row, int64_t col, int64_t count) {
    add_part(at(from, row, col), at(to, row, col), count);
  });
}

void scale(const Context& ctx, const Tensor& x, double factor) {
  if (ctx.meta()) return;
  parallel_for(*ctx.threads, x.numel(), kTaskBytes / size_of(x.dtype),
               [&](int64_t begin, int64_t end) {
                 const int64_t count = end - begin;
                 if (x.dtype == DType::kF64)
                   scale_elements(x.as<double>() + begin, factor, count);
                 else if (x.dtype == DType::kF32)
                   scale_elements(x.as<float>() + begin, factor, count);
                 else
                   scale_elements<bf16, float>(x.as<bf16>() + begin, factor, count);
               });
}

void fill(const Context& ctx, const Matrix& to, double value) {
  if (ctx.meta() || to.rows * to.cols == 0) return;
  if (to.rows > 1 && is_dense(to)) return cpu::fill(ctx, as_one_row(to), value);
  for_each_part(ctx, to.rows, to.cols, to.dtype, [&](int64_t row, int64_t col, int64_t count) {
    std::byte* out = at(to, row, col);
    if (value == 0.0)
      std::memset(out, 0, size_t(count * size_of(to.dtype)));
    else if (to.dtype == DType::kF64)
      std::fill_n(reinterpret_cast<double*>(out), count, value);
    else
      std::fill_n(reinterpret_cast<float*>(out), count, float(value));
  });
}

void copy_rows(const Context& ctx, std::span<const RowPair> rows, const Matrix& from,
               const Matrix& to) {
  if (ctx.meta() || rows.empty() || to.cols == 0) return;
  const int64_t row_bytes = to.cols * size_of(to.dtype);
  parallel_for(*ctx.threads, int64_t(rows.size()), std::max<int64_t>(1, kTaskBytes / row_bytes),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i)
                   copy_elements(ctx, from, rows[size_t(i)].from, to, rows[size_t(i)].to, 0,
                                 to.cols);
               });
}

void copy_from_runs(const Context& ctx, const BoxRange& range, const Tensor& runs,
                    const Tensor& packed) {
  if (ctx.meta()) return;
  const int64_t width = size_of(runs.dtype);
  for_each_run_of(ctx, range, runs.dtype, [&](int64_t in_packed, int64_t in_runs, int64_t length) {
    std::memcpy(packed.data + in_packed * width, runs.data + in_runs * width,
                size_t(length * width));
  });
}

void copy_to_runs(const Context& ctx, const BoxRange& range, const Tensor& packed,
                  const Tensor& runs) {
  if (ctx.meta()) return;
  const int64_t width = size_of(runs.dtype);
  for_each_run_of(ctx, range, runs.dtype, [&](int64_t in_packed, int64_t in_runs, int64_t length) {
    std::memcpy(runs.data + in_runs * width, packed.data + in_packed * width,
                size_t(length * width));
  });
}

void upload_i32(const Context& ctx, std::span<const int32_t> from, const Tensor& to) {
  if (!ctx.meta() && !from.empty()) std::memcpy(to.data, from.data(), from.size_bytes());
}

void upload_real(const Context& ctx, std::span<const double> from, const Tensor& to) {
  if (ctx.meta()) return;
  if (to.dtype == DType::kF64)
    std::copy(from.begin(), from.end(), to.as<double>());
  else
    std::transform(from.begin(), from.end(), to.as<float>(), [](double x) { return float(x); });
}

void download_i32(const Context& ctx, const Tensor& from, std::span<int32_t> to) {
  download_from<int32_t>(ctx, from, to);
}

void download_i64(const Context& ctx, const Tensor& from, std::span<int64_t> to) {
  download_from<int64_t>(ctx, from, to);
}

void download_real(const Context& ctx, const Tensor& from, std::span<double> to) {
  from.dtype == DType::kF64 ? download_from<double>(ctx, from, to)
                            : download_from<float>(ctx, from, to);
}

void download_list(const Context& ctx, std::span<const Download> list) {
  for (const Download& d : list)
    d.from.dtype == DType::kI64 ? download_i64(ctx, d.from, d.counts)
                                : download_real(ctx, d.from, d.reals);
}

}  // namespace ashlar::kernels::cpu
