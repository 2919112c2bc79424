#include "ashlar/nn/exchange.h"

#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::nn {
namespace {

using kernels::AttentionShape;
using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

// The local row of a document's token, or -1 where no segment holds it.
int64_t row_of(const Sequence& sequence, int64_t document, int64_t position) {
  for (const Segment& s : sequence.segments())
    if (s.document == document && position >= s.position && position < s.position + s.length)
      return s.row + position - s.position;
  return -1;
}

// Calls use(halo row, steps back from the segment: 1 or 2, local row) for every token a halo stands
// for.
template <typename Use>
void for_each_halo_token(const Sequence& sequence, Use use) {
  int64_t halo = 0;
  for (const Segment& segment : sequence.segments()) {
    if (segment.position == 0) continue;
    for (int64_t back = 1; back <= 2 && back <= segment.position; ++back) {
      const int64_t row = row_of(sequence, segment.document, segment.position - back);
      ASHLAR_ASSERT(row >= 0);  // the local exchange serves whole documents only
      use(halo, back, row);
    }
    ++halo;
  }
}

std::byte* row_ptr(const Matrix& m, int64_t row) {
  return m.data + row * m.stride * size_of(m.dtype);
}

template <typename T>
void add_row(const std::byte* from, std::byte* to, int64_t n) {
  const T* in = reinterpret_cast<const T*>(from);
  T* out = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

void add_row(DType dtype, const std::byte* from, std::byte* to, int64_t n) {
  dtype == DType::kF64 ? add_row<double>(from, to, n) : add_row<float>(from, to, n);
}

}  // namespace

void LocalExchange::halo_forward(const Context& ctx, int64_t, const Sequence& sequence,
                                 const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                                 const Tensor& halo_vd) {
  if (ctx.meta() || sequence.num_halos() == 0) return;
  fill_zero(halo_z);
  for_each_halo_token(sequence, [&](int64_t halo, int64_t back, int64_t row) {
    const int64_t z_bytes = z.cols * size_of(z.dtype);
    std::memcpy(halo_z.data + (halo * 2 + 2 - back) * z_bytes, row_ptr(z, row), size_t(z_bytes));
    const int64_t vd_bytes = vd.cols * size_of(vd.dtype);
    if (back == 1) std::memcpy(halo_vd.data + halo * vd_bytes, row_ptr(vd, row), size_t(vd_bytes));
  });
}

void LocalExchange::halo_backward(const Context& ctx, int64_t, const Sequence& sequence,
                                  const Tensor& dhalo_z, const Tensor& dhalo_vd, const Matrix& dz,
                                  const Matrix& dvd) {
  if (ctx.meta() || sequence.num_halos() == 0) return;
  for_each_halo_token(sequence, [&](int64_t halo, int64_t back, int64_t row) {
    const int64_t z_bytes = dz.cols * size_of(dz.dtype);
    add_row(dz.dtype, dhalo_z.data + (halo * 2 + 2 - back) * z_bytes, row_ptr(dz, row), dz.cols);
    const int64_t vd_bytes = dvd.cols * size_of(dvd.dtype);
    if (back == 1) add_row(dvd.dtype, dhalo_vd.data + halo * vd_bytes, row_ptr(dvd, row), dvd.cols);
  });
}

void LocalExchange::attend(const Context& ctx, int64_t, const AttentionShape& shape,
                           const Sequence& sequence, const Tensor& q, const Tensor& k,
                           const Tensor& v, const Tensor& out, const Tensor& lse) {
  attention_forward(ctx, shape, sequence, sequence.segments(), q, k, v, out, lse);
}

void LocalExchange::attend_backward(const Context& ctx, int64_t, const AttentionShape& shape,
                                    const Sequence& sequence, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const Tensor& out, const Tensor& lse,
                                    const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                    const Tensor& dv) {
  attention_backward(ctx, shape, sequence, sequence.segments(), q, k, v, out, lse, dout, dq, dk,
                     dv);
}

}  // namespace ashlar::nn
