#include "ashlar/checkpoint/format/boxes.h"

#include <fmt/core.h>

#include <set>

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

namespace {

// Joins the boxes in the dims from `dim` on, for one stretch of indices of the dims before.  The
// stretch is cut at every border of a box along `dim`; neighbours that have the same section in the
// further dims become one box.
std::vector<Box> sections(const std::vector<const Box*>& boxes, int dim) {
  if (dim == boxes[0]->offset.ndim()) {
    Shape none = boxes[0]->offset;
    for (int d = 0; d < dim; ++d) none[d] = 0;
    return {{none, none}};  // every dim is filled in by the call for it
  }
  std::set<int64_t> borders;
  for (const Box* box : boxes)
    borders.insert({box->offset[dim], box->offset[dim] + box->length[dim]});
  std::vector<Box> joined, last;  // last: the section of the stretch before
  size_t last_begin = 0;          // of its boxes in `joined`
  int64_t last_end = 0;
  for (auto at = borders.begin(); std::next(at) != borders.end(); ++at) {
    const int64_t begin = *at, end = *std::next(at);
    std::vector<const Box*> here;
    for (const Box* box : boxes)
      if (box->offset[dim] <= begin && end <= box->offset[dim] + box->length[dim])
        here.push_back(box);
    if (here.empty()) continue;
    std::vector<Box> section = sections(here, dim + 1);
    const bool goes_on = !last.empty() && last_end == begin && section == last;
    if (!goes_on) {
      last_begin = joined.size();
      joined.insert(joined.end(), section.begin(), section.end());
      for (size_t i = last_begin; i < joined.size(); ++i) {
        joined[i].offset[dim] = begin;
        joined[i].length[dim] = 0;
      }
      last = std::move(section);
    }
    for (size_t i = last_begin; i < joined.size(); ++i) joined[i].length[dim] += end - begin;
    last_end = end;
  }
  return joined;
}

}  // namespace

std::vector<Box> join_boxes(std::span<const Box> boxes) {
  std::vector<const Box*> filled;
  for (const Box& box : boxes)
    if (box.length.numel() > 0) filled.push_back(&box);
  return filled.empty() ? std::vector<Box>() : sections(filled, 0);
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
