#include <algorithm>
#include <bit>
#include <vector>

#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

bool is_dense(const Matrix& m) {
  return m.rows == 1 || m.stride == m.cols;
}

// Matrices without gaps are one row.
Matrix joined(const Matrix& m, bool dense) {
  if (!dense) return m;
  return {m.data, m.dtype, 1, m.rows * m.cols, m.rows * m.cols};
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

void convert(const Context& ctx, const Matrix& from, const Matrix& to, bool adds) {
  const bool of_floats = is_float(from.dtype) && is_float(to.dtype);
  launch(ctx, device::Convert{.from = any_elements(from),
                              .to = any_elements(to),
                              .rows = to.rows,
                              .width = to.cols,
                              .from_stride = from.stride,
                              .to_stride = to.stride,
                              .by_vectors = of_floats && by_vectors(from) && by_vectors(to),
                              .adds = adds});
}

void copy_between(void* to, const void* from, int64_t bytes) {
  const std::string error = device::copy_bytes(to, from, size_t(bytes));
  ASHLAR_REQUIRE(error.empty(), kDevice, "memory was not copied: {}", error);
}

void download_together(const Context& ctx, const std::vector<Stream::Download>& copies) {
  if (ctx.stream) return ctx.stream->download(copies);
  for (const Stream::Download& copy : copies)
    if (copy.bytes > 0) copy_between(copy.to, copy.from, copy.bytes);
}

}  // namespace

void upload_bytes(const Context& ctx, const void* from, int64_t bytes, const Tensor& to) {
  ASHLAR_ASSERT(bytes <= to.bytes());
  if (ctx.meta()) return;
  if (ctx.stream) return ctx.stream->upload(to.data, from, bytes);
  copy_between(to.data, from, bytes);
}

void copy(const Context& ctx, const Matrix& from, const Matrix& to) {
  if (to.rows * to.cols == 0) return;
  const bool dense = is_dense(from) && is_dense(to);
  const Matrix in = joined(from, dense), out = joined(to, dense);
  if (in.dtype != out.dtype) return convert(ctx, in, out, false);
  const int64_t size = size_of(in.dtype);
  launch(ctx, device::CopyBytes{.from = in.data,
                                .to = out.data,
                                .rows = out.rows,
                                .row_bytes = out.cols * size,
                                .from_stride_bytes = in.stride * size,
                                .to_stride_bytes = out.stride * size});
}

void add(const Context& ctx, const Matrix& from, const Matrix& to) {
  if (to.rows * to.cols == 0) return;
  const bool dense = is_dense(from) && is_dense(to);
  convert(ctx, joined(from, dense), joined(to, dense), true);
}

void scale(const Context& ctx, const Tensor& x, double factor) {
  if (x.empty()) return;
  launch(ctx, device::Scale{.x = elements(x),
                            .factor = float(factor),
                            .n = x.numel(),
                            .by_vectors = by_vectors(0, {x})});
}

void fill(const Context& ctx, const Matrix& to, double value) {
  if (to.rows * to.cols == 0) return;
  const Matrix out = joined(to, is_dense(to));
  const int64_t size = size_of(out.dtype);
  device::Fill fill{.to = out.data,
                    .rows = out.rows,
                    .row_bytes = out.cols * size,
                    .stride_bytes = out.stride * size,
                    .pattern = 0,
                    .unit_bytes = 1};
  if (std::bit_cast<uint64_t>(value) != 0 && out.dtype == DType::kF64) {
    fill.pattern = std::bit_cast<uint64_t>(value);
    fill.unit_bytes = 8;
  } else if (std::bit_cast<uint64_t>(value) != 0 && out.dtype == DType::kF32) {
    const uint64_t bits = std::bit_cast<uint32_t>(float(value));
    fill.pattern = bits | bits << 32;
    fill.unit_bytes = 4;
  }
  launch(ctx, fill);
}

void upload_i32(const Context& ctx, std::span<const int32_t> from, const Tensor& to) {
  ASHLAR_ASSERT(to.dtype == DType::kI32);
  if (!to.empty()) upload_bytes(ctx, from.data(), to.bytes(), to);
}

void upload_real(const Context& ctx, std::span<const double> from, const Tensor& to) {
  if (to.empty()) return;
  if (to.dtype == DType::kF64) return upload_bytes(ctx, from.data(), to.bytes(), to);
  ASHLAR_ASSERT(to.dtype == DType::kF32);
  const std::vector<float> values(from.begin(), from.end());
  upload_bytes(ctx, values.data(), to.bytes(), to);
}

void download_i32(const Context& ctx, const Tensor& from, std::span<int32_t> to) {
  ASHLAR_ASSERT(from.dtype == DType::kI32);
  if (!ctx.meta()) download_together(ctx, {{to.data(), from.data, from.bytes()}});
}

void download_i64(const Context& ctx, const Tensor& from, std::span<int64_t> to) {
  const Download download{.from = from, .counts = to};
  gpu::download_list(ctx, std::span(&download, 1));
}

void download_real(const Context& ctx, const Tensor& from, std::span<double> to) {
  const Download download{.from = from, .reals = to};
  gpu::download_list(ctx, std::span(&download, 1));
}

// Numbers in F32 come in that type, and become those of the host there.
void download_list(const Context& ctx, std::span<const Download> list) {
  if (ctx.meta()) return;
  std::vector<Stream::Download> copies;
  std::vector<std::vector<float>> floats(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Download& d = list[i];
    floats[i].resize(d.from.dtype == DType::kF32 ? d.reals.size() : 0);
    void* const to = d.from.dtype == DType::kI64   ? static_cast<void*>(d.counts.data())
                     : d.from.dtype == DType::kF64 ? static_cast<void*>(d.reals.data())
                                                   : floats[i].data();
    ASHLAR_ASSERT(d.from.numel() == int64_t(d.reals.size() + d.counts.size()));
    copies.push_back({to, d.from.data, d.from.bytes()});
  }
  download_together(ctx, copies);
  for (size_t i = 0; i < list.size(); ++i) std::ranges::copy(floats[i], list[i].reals.begin());
}

}  // namespace ashlar::kernels::gpu
