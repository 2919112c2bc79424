// How it works.  `assign` makes everything that depends on documents, before a micro-batch; the
// layers then call the halo functions here, and attend and attend_backward of cp_keys.cpp.
//
//   a row of the batch      .. t-3  t-2  t-1 | t  t+1  ..
//                               rank a       |     rank b
//   forward    a: Side behind_   z_{t-2} z_{t-1} vd_{t-1}  -->  b: Side before_, then halo rows
//   backward   a: Side behind_, then added to dz, dvd      <--  b: Side before_, from halo rows
//
// A Side has one message for each border, and a message one row for each row of the batch, whether
// a document crosses there or not.  Only segments that continue a document have halo rows: HaloRows
// pairs those with rows of the messages.  Two ranks may meet at two borders (zigzag), of which each
// sends at one: the messages of a pair cannot be taken for each other.
#include "ashlar/parallel/cp.h"

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

}  // namespace

Matrix CpSequence::Side::message(size_t border) const {
  return Matrix::of(transfers[border].data);
}

void CpSequence::Side::take(Allocator& allocator, DType dtype, int64_t num_rows, int64_t width) {
  const auto num = int64_t(borders.size());
  memory = make_tensor(allocator, dtype, {num, num_rows, width}, Tag::kCommunication);
  for (int64_t i = 0; i < num; ++i)
    transfers.push_back(
        {borders[size_t(i)].rank, memory.tensor.slice(i, i + 1).view({num_rows, width})});
}

CpSequence::CpSequence(comm::Group& ranks, const CpSplit& split, const nn::CcaShape& shape,
                       const nn::Types& types, Allocator& allocator)
    : ranks_(ranks),
      split_(split),
      parts_(size_t(split.num_ranks)),
      message_width_(2 * shape.conv_channels() + shape.delayed) {
  ASHLAR_ASSERT(ranks.size() == split.num_ranks);
  split.check();
  for (HaloRows* rows : {&arriving_, &leaving_})
    rows->reserve(size_t(max_halos(split, ranks.rank())));
  for (std::vector<Segment>& part : parts_) part.reserve(size_t(split.local_tokens()));
  sequence_.reserve(split.local_tokens());
  find_borders();
  before_.take(allocator, types.stream, split.num_rows, message_width_);
  behind_.take(allocator, types.stream, split.num_rows, message_width_);
}

void CpSequence::find_borders() {
  const int64_t c = split_.chunk_length();
  for (const CpStretch& stretch : stretches_of(split_, ranks_.rank())) {
    const int64_t end = stretch.local + stretch.end - stretch.begin;
    if (stretch.begin > 0)
      before_.borders.push_back({split_.owner(stretch.begin / c - 1), stretch.local});
    if (stretch.end < split_.length)
      behind_.borders.push_back({split_.owner(stretch.end / c), end});
  }
}

void CpSequence::assign(std::span<const Segment> whole_rows) {
  for (int rank = 0; rank < split_.num_ranks; ++rank)
    take_local_segments(split_, rank, whole_rows, parts_[size_t(rank)]);
  sequence_.assign(parts_[size_t(ranks_.rank())]);
  ASHLAR_ASSERT(sequence_.num_tokens() == split_.local_tokens());
  find_halos();
  assign_keys();
}

void CpSequence::find_halos() {
  arriving_.clear();
  leaving_.clear();
  int64_t halo = 0;
  for (const Segment& segment : sequence_.segments()) {
    if (segment.position == 0) continue;
    const int64_t row = segment.row / split_.local_length();
    const int64_t first = segment.row % split_.local_length();
    // Only at the start of a stretch does a segment continue a document.
    int64_t border = 0;
    while (before_.borders[size_t(border)].local != first) ++border;
    const int64_t message = border * split_.num_rows + row;
    arriving_.last.push_back({message, halo});
    leaving_.last.push_back({halo, message});
    if (segment.position >= 2) {  // else the older token is none of this document
      arriving_.older.push_back({message, halo});
      leaving_.older.push_back({halo, message});
    }
    ++halo;
  }
}

void CpSequence::exchange(const Side& from, const Side& to, std::string_view label) {
  if (from.borders.empty() && to.borders.empty()) return;
  ranks_.send_receive(from.transfers, to.transfers, label).wait();
}

// One token of every row of the batch: number `token` of this rank's part of it.
Matrix CpSequence::token_of_rows(const Matrix& tokens, int64_t token) const {
  Matrix rows = tokens.row_range(token, token + 1);
  rows.rows = split_.num_rows;
  rows.stride = split_.local_length() * tokens.stride;
  return rows;
}

void CpSequence::halo_forward(const Context& ctx, int64_t, const Sequence& sequence,
                              const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                              const Tensor& halo_vd) {
  const int64_t C = z.cols, width = message_width_, num_halos = sequence.num_halos();
  ASHLAR_ASSERT(2 * C + vd.cols == width && num_halos == int64_t(arriving_.last.size()));
  for (size_t i = 0; i < behind_.borders.size(); ++i) {
    const Matrix message = behind_.message(i);
    const int64_t last = behind_.borders[i].local - 1;  // before the border
    copy(ctx, token_of_rows(z, last - 1), message.columns(0, C));
    copy(ctx, token_of_rows(z, last), message.columns(C, 2 * C));
    copy(ctx, token_of_rows(vd, last), message.columns(2 * C, width));
  }
  exchange(behind_, before_, "halo");
  const Matrix messages = Matrix::of(before_.memory.tensor);
  const Matrix halos = Matrix::of(halo_z.view({num_halos, 2 * C}));
  fill(ctx, halos.columns(0, C), 0.0);  // a document has nothing before its first token
  copy_rows(ctx, arriving_.older, messages.columns(0, C), halos.columns(0, C));
  copy_rows(ctx, arriving_.last, messages.columns(C, 2 * C), halos.columns(C, 2 * C));
  copy_rows(ctx, arriving_.last, messages.columns(2 * C, width), Matrix::of(halo_vd));
}

void CpSequence::halo_backward(const Context& ctx, int64_t, const Sequence& sequence,
                               const Tensor& dhalo_z, const Tensor& dhalo_vd, const Matrix& dz,
                               const Matrix& dvd) {
  const int64_t C = dz.cols, width = message_width_, num_halos = sequence.num_halos();
  ASHLAR_ASSERT(2 * C + dvd.cols == width && num_halos == int64_t(leaving_.last.size()));
  const Matrix messages = Matrix::of(before_.memory.tensor);
  const Matrix halos = Matrix::of(dhalo_z.view({num_halos, 2 * C}));
  fill(ctx, messages, 0.0);  // documents that start at a border send nothing back
  copy_rows(ctx, leaving_.older, halos.columns(0, C), messages.columns(0, C));
  copy_rows(ctx, leaving_.last, halos.columns(C, 2 * C), messages.columns(C, 2 * C));
  copy_rows(ctx, leaving_.last, Matrix::of(dhalo_vd), messages.columns(2 * C, width));
  exchange(before_, behind_, "halo gradient");
  for (size_t i = 0; i < behind_.borders.size(); ++i) {
    const Matrix message = behind_.message(i);
    const int64_t last = behind_.borders[i].local - 1;
    add(ctx, message.columns(0, C), token_of_rows(dz, last - 1));
    add(ctx, message.columns(C, 2 * C), token_of_rows(dz, last));
    add(ctx, message.columns(2 * C, width), token_of_rows(dvd, last));
  }
}

}  // namespace ashlar::parallel
