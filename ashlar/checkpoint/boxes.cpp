#include "ashlar/checkpoint/boxes.h"

#include <fmt/core.h>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {

std::optional<Box> intersect(const Box& a, const Box& b) {
  ASHLAR_ASSERT(a.offset.ndim() == b.offset.ndim());
  Box both = a;
  for (int d = 0; d < a.offset.ndim(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.length[d], b.offset[d] + b.length[d]);
    if (begin >= end) return std::nullopt;
    both.offset[d] = begin;
    both.length[d] = end - begin;
  }
  return both;
}

bool inside(const Box& box, const Shape& shape) {
  if (box.offset.ndim() != shape.ndim() || box.length.ndim() != shape.ndim()) return false;
  for (int d = 0; d < shape.ndim(); ++d)
    if (box.offset[d] < 0 || box.length[d] < 0 || box.offset[d] > shape[d] ||
        box.length[d] > shape[d] - box.offset[d])
      return false;
  return true;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.offset.ndim(); ++d)
    text += fmt::format("{}{}:{}", d ? ", " : "", box.offset[d], box.offset[d] + box.length[d]);
  return text + "]";
}

Runs::Runs(const Box& part, const Box& from, const Box& to) {
  const int ndim = part.offset.ndim();
  std::array<int64_t, Shape::kMaxDims> from_stride{}, to_stride{};
  for (int d = ndim - 1; d >= 0; --d) {
    from_stride[d] = d == ndim - 1 ? 1 : from_stride[d + 1] * from.length[d + 1];
    to_stride[d] = d == ndim - 1 ? 1 : to_stride[d + 1] * to.length[d + 1];
    from_ += (part.offset[d] - from.offset[d]) * from_stride[d];
    to_ += (part.offset[d] - to.offset[d]) * to_stride[d];
  }
  // A dim joins the run while all dims inside it are taken whole from both boxes.
  int d = ndim - 1;
  for (; d >= 0; --d) {
    length_ *= part.length[d];
    if (part.length[d] != from.length[d] || part.length[d] != to.length[d]) {
      --d;
      break;
    }
  }
  outer_dims_ = d + 1;
  for (int outer = 0; outer < outer_dims_; ++outer) {
    extent_[outer] = part.length[outer];
    from_stride_[outer] = from_stride[outer];
    to_stride_[outer] = to_stride[outer];
    count_ *= extent_[outer];
  }
}

void Runs::next() {
  ++index_;
  for (int d = outer_dims_ - 1; d >= 0; --d) {
    from_ += from_stride_[d];
    to_ += to_stride_[d];
    if (++at_[d] < extent_[d]) return;
    from_ -= extent_[d] * from_stride_[d];
    to_ -= extent_[d] * to_stride_[d];
    at_[d] = 0;
  }
}

void Runs::seek(int64_t from) {
  int64_t low = 0, high = count_;  // positions grow with the index
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    move_to(middle);
    if (from_ + length_ > from)
      high = middle;
    else
      low = middle + 1;
  }
  move_to(low);
}

void Runs::move_to(int64_t index) {
  index_ = index;
  for (int d = outer_dims_ - 1; d >= 0; --d) {
    const int64_t at = d > 0 ? index % extent_[d] : index;  // count_ itself lies behind the last
    index /= extent_[d];
    from_ += (at - at_[d]) * from_stride_[d];
    to_ += (at - at_[d]) * to_stride_[d];
    at_[d] = at;
  }
}

}  // namespace ashlar::checkpoint
