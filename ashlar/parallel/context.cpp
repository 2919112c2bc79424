#include "ashlar/parallel/context.h"

#include <cstring>

namespace ashlar::parallel {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

std::byte* row_ptr(const Matrix& m, int64_t row) {
  return m.data + row * m.stride * size_of(m.dtype);
}

template <typename T>
void add(const std::byte* from, std::byte* to, int64_t n) {
  const T* in = reinterpret_cast<const T*>(from);
  T* out = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}
void add(DType dtype, const std::byte* from, std::byte* to, int64_t n) {
  dtype == DType::kF64 ? add<double>(from, to, n) : add<float>(from, to, n);
}

void copy_bytes(const std::byte* from, std::byte* to, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, size_t(bytes));
}

}  // namespace

std::byte* ContextParallel::Side::at(int64_t border, int64_t row) const {
  const Tensor& rows = transfers[size_t(border)].data;
  return rows.slice(row, row + 1).data;
}

void ContextParallel::Side::take(Allocator& allocator, DType dtype, int64_t num_rows,
                                 int64_t width) {
  const auto num = int64_t(borders.size());
  memory = make_tensor(allocator, dtype, {num, num_rows, width}, Tag::kCommunication);
  for (int64_t i = 0; i < num; ++i)
    transfers.push_back(
        {borders[size_t(i)].rank, memory.tensor.slice(i, i + 1).view({num_rows, width})});
}

ContextParallel::ContextParallel(comm::Group& ranks, const ContextSplit& split,
                                 const ModelSpec& spec, const nn::Types& types,
                                 Allocator& allocator)
    : ranks_(ranks),
      split_(split),
      parts_(size_t(split.num_ranks)),
      message_width_(2 * spec.conv_channels() + spec.delayed_dim()) {
  ASHLAR_ASSERT(ranks.size() == split.num_ranks);
  split.check();
  find_borders();
  before_.take(allocator, types.stream, split.num_rows, message_width_);
  behind_.take(allocator, types.stream, split.num_rows, message_width_);
}

void ContextParallel::find_borders() {
  const int64_t c = split_.chunk_length();
  for (const ContextPiece& piece : pieces_of(split_, ranks_.rank())) {
    const int64_t end = piece.local + piece.end - piece.begin;
    if (piece.begin > 0)
      before_.borders.push_back({split_.owner(piece.begin / c - 1), piece.local});
    if (piece.end < split_.length) behind_.borders.push_back({split_.owner(piece.end / c), end});
  }
}

void ContextParallel::assign(std::span<const Segment> whole_rows) {
  for (int rank = 0; rank < split_.num_ranks; ++rank)
    take_local_segments(split_, rank, whole_rows, parts_[size_t(rank)]);
  sequence_.assign(parts_[size_t(ranks_.rank())]);
  ASHLAR_ASSERT(sequence_.num_tokens() == split_.local_tokens());
  find_halos();
  assign_keys();
}

void ContextParallel::find_halos() {
  halos_.clear();
  for (const Segment& segment : sequence_.segments()) {
    if (segment.position == 0) continue;
    const int64_t row = segment.row / split_.local_length();
    const int64_t first = segment.row % split_.local_length();
    int64_t border = 0;  // only at the start of a piece does a segment continue a document
    while (before_.borders[size_t(border)].local != first) ++border;
    halos_.push_back({border, row, segment.position});
  }
}

void ContextParallel::exchange(const Side& from, const Side& to, std::string_view label) {
  if (from.borders.empty() && to.borders.empty()) return;
  ranks_.send_receive(from.transfers, to.transfers, label).wait();
}

template <typename Visit>
void ContextParallel::for_each_tail(Visit visit) const {
  for (size_t i = 0; i < behind_.borders.size(); ++i)
    for (int64_t row = 0; row < split_.num_rows; ++row)
      visit(row * split_.local_length() + behind_.borders[i].local - 2,
            behind_.at(int64_t(i), row));
}

void ContextParallel::halo_forward(const Context& ctx, int64_t, const Sequence& sequence,
                                   const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                                   const Tensor& halo_vd) {
  ASHLAR_ASSERT(2 * z.cols + vd.cols == message_width_);
  ASHLAR_ASSERT(sequence.num_halos() == int64_t(halos_.size()));
  const int64_t z_bytes = z.cols * size_of(z.dtype), vd_bytes = vd.cols * size_of(vd.dtype);
  if (!ctx.meta())
    for_each_tail([&](int64_t older, std::byte* to) {
      copy_bytes(row_ptr(z, older), to, z_bytes);
      copy_bytes(row_ptr(z, older + 1), to + z_bytes, z_bytes);
      copy_bytes(row_ptr(vd, older + 1), to + 2 * z_bytes, vd_bytes);
    });
  exchange(behind_, before_, "halo");
  if (ctx.meta()) return;
  for (size_t h = 0; h < halos_.size(); ++h) {
    const std::byte* from = before_.at(halos_[h].border, halos_[h].row);
    std::byte* to = halo_z.data + int64_t(h) * 2 * z_bytes;
    copy_bytes(from, to, 2 * z_bytes);
    if (halos_[h].position == 1) std::memset(to, 0, size_t(z_bytes));  // before the document
    copy_bytes(from + 2 * z_bytes, halo_vd.data + int64_t(h) * vd_bytes, vd_bytes);
  }
}

void ContextParallel::halo_backward(const Context& ctx, int64_t, const Sequence& sequence,
                                    const Tensor& dhalo_z, const Tensor& dhalo_vd, const Matrix& dz,
                                    const Matrix& dvd) {
  ASHLAR_ASSERT(2 * dz.cols + dvd.cols == message_width_);
  ASHLAR_ASSERT(sequence.num_halos() == int64_t(halos_.size()));
  const int64_t z_bytes = dz.cols * size_of(dz.dtype), vd_bytes = dvd.cols * size_of(dvd.dtype);
  fill_zero(before_.memory.tensor);  // documents that start at a border send nothing back
  for (size_t h = 0; h < halos_.size() && !ctx.meta(); ++h) {
    std::byte* to = before_.at(halos_[h].border, halos_[h].row);
    const std::byte* from = dhalo_z.data + int64_t(h) * 2 * z_bytes;
    const int64_t skip = halos_[h].position == 1 ? z_bytes : 0;
    copy_bytes(from + skip, to + skip, 2 * z_bytes - skip);
    copy_bytes(dhalo_vd.data + int64_t(h) * vd_bytes, to + 2 * z_bytes, vd_bytes);
  }
  exchange(before_, behind_, "halo gradient");
  if (ctx.meta()) return;
  for_each_tail([&](int64_t older, const std::byte* from) {
    add(dz.dtype, from, row_ptr(dz, older), dz.cols);
    add(dz.dtype, from + z_bytes, row_ptr(dz, older + 1), dz.cols);
    add(dvd.dtype, from + 2 * z_bytes, row_ptr(dvd, older + 1), dvd.cols);
  });
}

}  // namespace ashlar::parallel
