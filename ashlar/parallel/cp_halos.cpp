// How it works.  `assign` makes everything that depends on documents before a micro-batch; layers
// then call halo_forward and halo_backward.
//
//   a row of the batch      .. t-3  t-2  t-1 | t  t+1  ..
//                               rank a       |     rank b
//   forward    a: Side behind_   x_{t-2} x_{t-1}, y_{t-1}  -->  b: Side before_, then halo rows
//   backward   a: Side behind_, then added to dx, dy       <--  b: Side before_, from halo rows
//
// A Side has one message for each border, and a message has one row for each row of the batch,
// whether a document crosses the border or not.  Only segments that continue a document have halo
// rows; HaloRows pairs them with rows of the messages.  Two ranks may meet at two borders (zigzag),
// but each sends at only one of them, so their messages cannot be confused.
#include "ashlar/parallel/cp_halos.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {

using kernels::Context;
using kernels::Matrix;

Matrix CpHalos::Side::message(size_t border) const {
  return Matrix::of(transfers[border].data);
}

void CpHalos::Side::take(Allocator& allocator, DType dtype, int64_t num_rows, int64_t width) {
  const auto num = int64_t(borders.size());
  memory = make_tensor(allocator, dtype, {num, num_rows, width}, Tag::kCommunication);
  for (int64_t i = 0; i < num; ++i)
    transfers.push_back(
        {borders[size_t(i)].rank, memory.tensor.slice(i, i + 1).view({num_rows, width})});
}

CpHalos::CpHalos(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs,
                 DType wide, Allocator& allocator)
    : ranks_(ranks), split_(split), message_width_(needs.halo_numel()) {
  ASHLAR_ASSERT(ranks.size() == split.num_ranks);
  split.check();
  size_t reach = 0;
  for (const auto& strip : needs.strips()) reach = std::max(reach, size_t(strip.reach));
  ASHLAR_ASSERT(int64_t(reach) <= split.chunk_length());
  for (HaloRows* rows : {&arriving_, &leaving_}) {
    rows->resize(reach);
    for (auto& pairs : *rows) pairs.reserve(size_t(max_halos(split, ranks.rank())));
  }
  find_borders();
  before_.take(allocator, wide, split.num_rows, message_width_);
  behind_.take(allocator, wide, split.num_rows, message_width_);
}

void CpHalos::find_borders() {
  const int64_t c = split_.chunk_length();
  for (const CpStretch& stretch : stretches_of(split_, ranks_.rank())) {
    const int64_t end = stretch.local + stretch.end - stretch.begin;
    if (stretch.begin > 0)
      before_.borders.push_back({split_.owner(stretch.begin / c - 1), stretch.local});
    if (stretch.end < split_.length)
      behind_.borders.push_back({split_.owner(stretch.end / c), end});
  }
}

void CpHalos::assign(const kernels::Sequence& sequence) {
  for (HaloRows* rows : {&arriving_, &leaving_})
    for (auto& pairs : *rows) pairs.clear();
  int64_t halo = 0;
  for (const Segment& segment : sequence.segments()) {
    if (segment.position == 0) continue;
    const int64_t row = segment.row / split_.local_length();
    const int64_t first = segment.row % split_.local_length();
    // Segments continue a document only at the start of a stretch.
    int64_t border = 0;
    while (before_.borders[size_t(border)].local != first) ++border;
    const int64_t message = border * split_.num_rows + row;
    // Rows before the document's beginning do not belong to it.
    for (size_t back = 1; back <= arriving_.size() && int64_t(back) <= segment.position; ++back) {
      arriving_[back - 1].push_back({message, halo});
      leaving_[back - 1].push_back({halo, message});
    }
    ++halo;
  }
}

void CpHalos::exchange(const Side& from, const Side& to, std::string_view label) {
  if (from.borders.empty() && to.borders.empty()) return;
  ranks_.send_receive(from.transfers, to.transfers, label).wait();
}

// One token of every row of the batch: number `token` of this rank's part of it.
Matrix CpHalos::token_of_rows(const Matrix& tokens, int64_t token) const {
  Matrix rows = tokens.row_range(token, token + 1);
  rows.rows = split_.num_rows;
  rows.stride = split_.local_length() * tokens.stride;
  return rows;
}

template <typename Use>
void CpHalos::for_each_halo_row(std::span<const nn::Strip> strips, Use use) const {
  int64_t begin = 0;
  for (const nn::Strip& strip : strips) {
    const int64_t cols = strip.rows.cols, reach = strip.reach();
    const Matrix halos = Matrix::of(strip.halo.view({strip.halo.shape[0], reach * cols}));
    for (int64_t back = reach; back >= 1; --back, begin += cols) {
      const int64_t at = (reach - back) * cols;
      use(strip, back, begin, halos.columns(at, at + cols));
    }
  }
  ASHLAR_ASSERT(begin <= message_width_);  // less in some turns of a folded branch
}

void CpHalos::halo_forward(const Context& ctx, const nn::Pass& pass,
                           std::span<const nn::Strip> strips) {
  ASHLAR_ASSERT(pass.sequence.num_halos() == int64_t(arriving_[0].size()));
  for (size_t i = 0; i < behind_.borders.size(); ++i)
    for_each_halo_row(strips, [&](const nn::Strip& strip, int64_t back, int64_t at, Matrix) {
      copy(ctx, token_of_rows(strip.rows, behind_.borders[i].local - back),
           behind_.message(i).columns(at, at + strip.rows.cols));
    });
  exchange(behind_, before_, "halo");
  const Matrix messages = Matrix::of(before_.memory.tensor);
  for_each_halo_row(strips, [&](const nn::Strip& strip, int64_t back, int64_t at, Matrix halos) {
    if (back > 1) fill(ctx, halos, 0.0);  // a document has nothing before its first token
    copy_rows(ctx, arriving_[size_t(back) - 1], messages.columns(at, at + strip.rows.cols), halos);
  });
}

void CpHalos::halo_backward(const Context& ctx, const nn::Pass& pass,
                            std::span<const nn::Strip> strips) {
  ASHLAR_ASSERT(pass.sequence.num_halos() == int64_t(leaving_[0].size()));
  const Matrix messages = Matrix::of(before_.memory.tensor);
  fill(ctx, messages, 0.0);  // documents that start at a border send nothing back
  for_each_halo_row(strips, [&](const nn::Strip& strip, int64_t back, int64_t at, Matrix halos) {
    copy_rows(ctx, leaving_[size_t(back) - 1], halos, messages.columns(at, at + strip.rows.cols));
  });
  exchange(before_, behind_, "halo gradient");
  for (size_t i = 0; i < behind_.borders.size(); ++i)
    for_each_halo_row(strips, [&](const nn::Strip& strip, int64_t back, int64_t at, Matrix) {
      add(ctx, behind_.message(i).columns(at, at + strip.rows.cols),
          token_of_rows(strip.rows, behind_.borders[i].local - back));
    });
}

}  // namespace ashlar::parallel
