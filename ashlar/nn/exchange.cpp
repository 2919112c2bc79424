#include "ashlar/nn/exchange.h"

#include "ashlar/core/error.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::nn {
namespace {

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

Matrix one_row(const Matrix& m, int64_t row) {
  return m.row_range(row, row + 1);
}

}  // namespace

void LocalExchange::halo_forward(const Context& ctx, int64_t, const Sequence& sequence,
                                 const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                                 const Tensor& halo_vd) {
  if (sequence.num_halos() == 0) return;
  const Matrix to_z = Matrix::of(halo_z), to_vd = Matrix::of(halo_vd);
  fill(ctx, halo_z, 0.0);
  for_each_halo_token(sequence, [&](int64_t halo, int64_t back, int64_t row) {
    copy(ctx, one_row(z, row), one_row(to_z, halo * 2 + 2 - back));
    if (back == 1) copy(ctx, one_row(vd, row), one_row(to_vd, halo));
  });
}

void LocalExchange::halo_backward(const Context& ctx, int64_t, const Sequence& sequence,
                                  const Tensor& dhalo_z, const Tensor& dhalo_vd, const Matrix& dz,
                                  const Matrix& dvd) {
  if (sequence.num_halos() == 0) return;
  const Matrix from_z = Matrix::of(dhalo_z), from_vd = Matrix::of(dhalo_vd);
  for_each_halo_token(sequence, [&](int64_t halo, int64_t back, int64_t row) {
    add(ctx, one_row(from_z, halo * 2 + 2 - back), one_row(dz, row));
    if (back == 1) add(ctx, one_row(from_vd, halo), one_row(dvd, row));
  });
}

void LocalExchange::attend(const Context& ctx, int64_t, const Sequence& sequence,
                           const kernels::Attention& x) {
  attention_forward(ctx, sequence, sequence.segments(), x);
}

void LocalExchange::attend_backward(const Context& ctx, int64_t, const Sequence& sequence,
                                    const kernels::Attention& x,
                                    const kernels::AttentionGradients& gradients) {
  attention_backward(ctx, sequence, sequence.segments(), x, gradients);
}

}  // namespace ashlar::nn
