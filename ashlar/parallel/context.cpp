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

// Messages of `num` borders; vd is at most as wide as the values.
OwnedTensor message_memory(Allocator& allocator, const ContextSplit& split, const ModelSpec& spec,
                           DType stream, size_t num) {
  const int64_t width = 2 * spec.conv_channels() + spec.kv_dim();
  return make_tensor(allocator, stream, {int64_t(num), split.num_rows * width},
                     Tag::kCommunication);
}

}  // namespace

ContextParallel::ContextParallel(comm::Group& ranks, const ContextSplit& split,
                                 const ModelSpec& spec, const nn::Types& types,
                                 Allocator& allocator)
    : ranks_(ranks), split_(split), parts_(size_t(split.num_ranks)) {
  ASHLAR_ASSERT(ranks.size() == split.num_ranks);
  split.check();
  find_borders();
  at_before_ = message_memory(allocator, split, spec, types.stream, before_.size());
  at_behind_ = message_memory(allocator, split, spec, types.stream, behind_.size());
}

void ContextParallel::find_borders() {
  const int64_t c = split_.chunk_length();
  for (const ContextPiece& piece : pieces_of(split_, ranks_.rank())) {
    const int64_t end = piece.local + piece.end - piece.begin;
    if (piece.begin > 0) before_.push_back({split_.owner(piece.begin / c - 1), piece.local});
    if (piece.end < split_.length) behind_.push_back({split_.owner(piece.end / c), end});
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
    while (before_[size_t(border)].local != first) ++border;
    halos_.push_back({border, row, segment.position});
  }
}

// The older of the two tokens before a border behind.
int64_t ContextParallel::tail_row(const Border& border, int64_t row) const {
  return row * split_.local_length() + border.local - 2;
}

Tensor ContextParallel::message(const OwnedTensor& memory, int64_t border, int64_t width) const {
  Tensor message = memory.tensor.slice(border, border + 1);
  message.shape = {split_.num_rows, width};
  return message;
}

comm::Work ContextParallel::exchange(std::span<const Border> to, const OwnedTensor& sent,
                                     std::span<const Border> from, const OwnedTensor& received,
                                     int64_t width, std::string_view label) {
  if (to.empty() && from.empty()) return {};
  sends_.clear();
  receives_.clear();
  for (size_t i = 0; i < to.size(); ++i)
    sends_.push_back({to[i].rank, message(sent, int64_t(i), width)});
  for (size_t i = 0; i < from.size(); ++i)
    receives_.push_back({from[i].rank, message(received, int64_t(i), width)});
  return ranks_.send_receive(sends_, receives_, label);
}

void ContextParallel::halo_forward(const Context& ctx, int64_t, const Sequence& sequence,
                                   const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                                   const Tensor& halo_vd) {
  ASHLAR_ASSERT(sequence.num_halos() == int64_t(halos_.size()));
  const int64_t width = 2 * z.cols + vd.cols;
  const int64_t z_bytes = z.cols * size_of(z.dtype), vd_bytes = vd.cols * size_of(vd.dtype);
  const auto at = [&](const OwnedTensor& memory, int64_t border, int64_t row) {
    return message(memory, border, width).slice(row, row + 1).data;
  };
  if (!ctx.meta())
    for (size_t i = 0; i < behind_.size(); ++i)
      for (int64_t row = 0; row < split_.num_rows; ++row) {
        std::byte* to = at(at_behind_, int64_t(i), row);
        const int64_t older = tail_row(behind_[i], row);
        std::memcpy(to, row_ptr(z, older), size_t(z_bytes));
        std::memcpy(to + z_bytes, row_ptr(z, older + 1), size_t(z_bytes));
        std::memcpy(to + 2 * z_bytes, row_ptr(vd, older + 1), size_t(vd_bytes));
      }
  exchange(behind_, at_behind_, before_, at_before_, width, "halo").wait();
  if (ctx.meta()) return;
  for (size_t h = 0; h < halos_.size(); ++h) {
    const std::byte* from = at(at_before_, halos_[h].border, halos_[h].row);
    std::byte* to = halo_z.data + int64_t(h) * 2 * z_bytes;
    std::memcpy(to, from, size_t(2 * z_bytes));
    if (halos_[h].position == 1) std::memset(to, 0, size_t(z_bytes));  // before the document
    std::memcpy(halo_vd.data + int64_t(h) * vd_bytes, from + 2 * z_bytes, size_t(vd_bytes));
  }
}

void ContextParallel::halo_backward(const Context& ctx, int64_t, const Sequence& sequence,
                                    const Tensor& dhalo_z, const Tensor& dhalo_vd, const Matrix& dz,
                                    const Matrix& dvd) {
  ASHLAR_ASSERT(sequence.num_halos() == int64_t(halos_.size()));
  const int64_t width = 2 * dz.cols + dvd.cols;
  const int64_t z_bytes = dz.cols * size_of(dz.dtype), vd_bytes = dvd.cols * size_of(dvd.dtype);
  const auto at = [&](const OwnedTensor& memory, int64_t border, int64_t row) {
    return message(memory, border, width).slice(row, row + 1).data;
  };
  fill_zero(at_before_.tensor);  // documents that start at a border send nothing back
  if (!ctx.meta())
    for (size_t h = 0; h < halos_.size(); ++h) {
      std::byte* to = at(at_before_, halos_[h].border, halos_[h].row);
      const std::byte* from = dhalo_z.data + int64_t(h) * 2 * z_bytes;
      const int64_t skip = halos_[h].position == 1 ? z_bytes : 0;
      std::memcpy(to + skip, from + skip, size_t(2 * z_bytes - skip));
      std::memcpy(to + 2 * z_bytes, dhalo_vd.data + int64_t(h) * vd_bytes, size_t(vd_bytes));
    }
  exchange(before_, at_before_, behind_, at_behind_, width, "halo gradient").wait();
  if (ctx.meta()) return;
  for (size_t i = 0; i < behind_.size(); ++i)
    for (int64_t row = 0; row < split_.num_rows; ++row) {
      const std::byte* from = at(at_behind_, int64_t(i), row);
      const int64_t older = tail_row(behind_[i], row);
      add(dz.dtype, from, row_ptr(dz, older), dz.cols);
      add(dz.dtype, from + z_bytes, row_ptr(dz, older + 1), dz.cols);
      add(dvd.dtype, from + 2 * z_bytes, row_ptr(dvd, older + 1), dvd.cols);
    }
}

}  // namespace ashlar::parallel
