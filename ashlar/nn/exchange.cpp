#include "ashlar/nn/exchange.h"

#include "ashlar/core/error.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/branch.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

// The local row of a document's token, or -1 if no segment holds it.
int64_t row_of(const Sequence& sequence, int64_t document, int64_t position) {
  for (const Segment& s : sequence.segments())
    if (s.document == document && position >= s.position && position < s.position + s.length)
      return s.row + position - s.position;
  return -1;
}

// Calls use(number of the halo, steps back from the segment, local row) for every token within
// `reach` of a segment that continues its document.
template <typename Use>
void for_each_halo_token(const Sequence& sequence, int64_t reach, Use use) {
  int64_t halo = 0;
  for (const Segment& segment : sequence.segments()) {
    if (segment.position == 0) continue;
    for (int64_t back = 1; back <= reach && back <= segment.position; ++back) {
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

// The halos' rows, one after another.
Matrix rows_of(const Tensor& halo) {
  return Matrix::of(halo.view({halo.shape[0] * halo.shape[1], halo.shape[2]}));
}

}  // namespace

std::span<const ExchangeNeeds::StripShape> ExchangeNeeds::strips() const {
  size_t count = 0;
  while (count < most_strips.size() && most_strips[count].reach > 0) ++count;
  return std::span(most_strips).first(count);
}

int64_t ExchangeNeeds::halo_numel() const {
  int64_t numel = 0;
  for (const StripShape& strip : strips()) numel += strip.reach * strip.cols;
  return numel;
}

void LocalHalos::halo_forward(const Context& ctx, const Pass& pass, std::span<const Strip> strips) {
  if (pass.sequence.num_halos() == 0) return;
  for (const Strip& strip : strips) {
    const Matrix to = rows_of(strip.halo);
    const int64_t reach = strip.reach();
    if (reach > 1) fill(ctx, strip.halo, 0.0);
    for_each_halo_token(pass.sequence, reach, [&](int64_t halo, int64_t back, int64_t row) {
      copy(ctx, one_row(strip.rows, row), one_row(to, (halo + 1) * reach - back));
    });
  }
}

void LocalHalos::halo_backward(const Context& ctx, const Pass& pass,
                               std::span<const Strip> strips) {
  if (pass.sequence.num_halos() == 0) return;
  for (const Strip& strip : strips) {
    const Matrix from = rows_of(strip.halo);
    const int64_t reach = strip.reach();
    for_each_halo_token(pass.sequence, reach, [&](int64_t halo, int64_t back, int64_t row) {
      add(ctx, one_row(from, (halo + 1) * reach - back), one_row(strip.rows, row));
    });
  }
}

void LocalKeys::attend(const Context& ctx, const Pass& pass, const kernels::Attention& x) {
  attention_forward(ctx, pass.sequence, pass.sequence.segments(), x);
}

void LocalKeys::attend_backward(const Context& ctx, const Pass& pass, const kernels::Attention& x,
                                const kernels::AttentionGradients& gradients) {
  attention_backward(ctx, pass.sequence, pass.sequence.segments(), x, gradients);
}

// No state arrives from other rows of the batch: rows that continue a document follow each other.
std::span<const kernels::StateChunk> LocalStates::chunks(const Pass& pass) {
  for (const kernels::StateChunk& chunk : pass.sequence.documents())
    ASHLAR_ASSERT(pass.sequence.position_T()[size_t(chunk.begin)] == 0);
  return pass.sequence.documents();
}

}  // namespace ashlar::nn
