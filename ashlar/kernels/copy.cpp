#include "ashlar/kernels/copy.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16;
}

bool can_copy(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

bool can_add(DType from, DType to) {
  if (to == DType::kBF16) return from == DType::kF32;
  return from == to && (is_floating(to) || to == DType::kI64);
}

Matrix one_row(const Tensor& tensor) {
  return {tensor.data, tensor.dtype, 1, tensor.numel(), tensor.numel()};
}

// Records the cost of rows x cols elements.
Trace::Scope record(const Context& ctx, std::string_view op, DType dtype, int64_t rows,
                    int64_t cols, Cost of_element) {
  const int64_t numel = rows * cols;
  return ctx.record(op, dtype, {of_element.flop * numel, of_element.bytes * numel});
}

Trace::Scope record_runs(const Context& ctx, std::string_view op, const BoxRange& range,
                         const Tensor& runs, const Tensor& packed) {
  ASHLAR_ASSERT(runs.dtype == packed.dtype && packed.numel() == range.length);
  ASHLAR_ASSERT(0 <= range.begin && range.begin + range.length <= range.box.length.numel());
  return ctx.record(op, packed.dtype, {0, 2 * packed.bytes()});
}

}  // namespace

void copy(const Context& ctx, const Matrix& from, const Matrix& to) {
  ASHLAR_ASSERT(from.rows == to.rows && from.cols == to.cols && can_copy(from.dtype, to.dtype));
  const Cost cost{0, size_of(from.dtype) + size_of(to.dtype)};
  const auto call = record(ctx, "copy", to.dtype, to.rows, to.cols, cost);
  ctx.ops->copy(ctx, from, to);
}

void copy(const Context& ctx, const Tensor& from, const Tensor& to) {
  copy(ctx, one_row(from), one_row(to));
}

void add(const Context& ctx, const Matrix& from, const Matrix& to) {
  ASHLAR_ASSERT(from.rows == to.rows && from.cols == to.cols && can_add(from.dtype, to.dtype));
  const Cost cost{1, size_of(from.dtype) + 2 * size_of(to.dtype)};
  const auto call = record(ctx, "add", to.dtype, to.rows, to.cols, cost);
  ctx.ops->add(ctx, from, to);
}

void add(const Context& ctx, const Tensor& from, const Tensor& to) {
  add(ctx, one_row(from), one_row(to));
}

void scale(const Context& ctx, const Tensor& x, double factor) {
  ASHLAR_ASSERT(is_floating(x.dtype));
  const auto call = record(ctx, "scale", x.dtype, 1, x.numel(), {1, 2 * size_of(x.dtype)});
  ctx.ops->scale(ctx, x, factor);
}

void fill(const Context& ctx, const Matrix& to, double value) {
  ASHLAR_ASSERT(value == 0.0 || to.dtype == DType::kF64 || to.dtype == DType::kF32);
  const auto call = record(ctx, "fill", to.dtype, to.rows, to.cols, {0, size_of(to.dtype)});
  ctx.ops->fill(ctx, to, value);
}

void fill(const Context& ctx, const Tensor& to, double value) {
  fill(ctx, one_row(to), value);
}

void copy_rows(const Context& ctx, std::span<const RowPair> rows, const Matrix& from,
               const Matrix& to) {
  ASHLAR_ASSERT(from.cols == to.cols && can_copy(from.dtype, to.dtype));
  for (const RowPair& pair : rows)
    ASHLAR_ASSERT(0 <= pair.from && pair.from < from.rows && 0 <= pair.to && pair.to < to.rows);
  const Cost cost{0, size_of(from.dtype) + size_of(to.dtype)};
  const auto call = record(ctx, "copy_rows", to.dtype, int64_t(rows.size()), to.cols, cost);
  ctx.ops->copy_rows(ctx, rows, from, to);
}

void copy_from_runs(const Context& ctx, const BoxRange& range, const Tensor& runs,
                    const Tensor& packed) {
  const auto call = record_runs(ctx, "copy_from_runs", range, runs, packed);
  ctx.ops->copy_from_runs(ctx, range, runs, packed);
}

void copy_to_runs(const Context& ctx, const BoxRange& range, const Tensor& packed,
                  const Tensor& runs) {
  const auto call = record_runs(ctx, "copy_to_runs", range, runs, packed);
  ctx.ops->copy_to_runs(ctx, range, packed, runs);
}

void upload(const Context& ctx, std::span<const int32_t> from, const Tensor& to) {
  ASHLAR_ASSERT(to.dtype == DType::kI32 && to.numel() == int64_t(from.size()));
  const auto call = ctx.record("upload", to.dtype, {0, 2 * to.bytes()});
  ctx.ops->upload_i32(ctx, from, to);
}

void upload(const Context& ctx, std::span<const double> from, const Tensor& to) {
  ASHLAR_ASSERT(is_stream(to.dtype) && to.numel() == int64_t(from.size()));
  const auto call = ctx.record("upload", to.dtype, {0, 2 * to.bytes()});
  ctx.ops->upload_real(ctx, from, to);
}

void download(const Context& ctx, const Tensor& from, std::span<int32_t> to) {
  ASHLAR_ASSERT(from.dtype == DType::kI32);
  const auto call = ctx.record("download", from.dtype, {0, 2 * from.bytes()});
  ctx.ops->download_i32(ctx, from, to);
}

void download(const Context& ctx, const Tensor& from, std::span<int64_t> to) {
  ASHLAR_ASSERT(from.dtype == DType::kI64);
  const auto call = ctx.record("download", from.dtype, {0, 2 * from.bytes()});
  ctx.ops->download_i64(ctx, from, to);
}

void download(const Context& ctx, const Tensor& from, std::span<double> to) {
  ASHLAR_ASSERT(is_stream(from.dtype));
  const auto call = ctx.record("download", from.dtype, {0, 2 * from.bytes()});
  ctx.ops->download_real(ctx, from, to);
}

void download(const Context& ctx, std::span<const Download> list) {
  Cost cost;
  for (const Download& d : list) {
    const bool counts = d.from.dtype == DType::kI64;
    ASHLAR_ASSERT(counts ? d.reals.empty() : is_stream(d.from.dtype) && d.counts.empty());
    cost.bytes += 2 * d.from.bytes();
  }
  if (list.empty()) return;
  const auto call = ctx.record("download", list[0].from.dtype, cost);
  ctx.ops->download_list(ctx, list);
}

}  // namespace ashlar::kernels
