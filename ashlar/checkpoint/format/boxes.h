// Intersections of boxes, and the contiguous runs in which a part of one row-major box is copied
// into another.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/tensor/shape.h"

namespace ashlar::checkpoint {

// nullopt: no common element.  Both are boxes of one tensor (equal ndim).
std::optional<Box> intersect(const Box& a, const Box& b);
// offset + length <= shape in every dim, without overflow.
bool inside(const Box& box, const Shape& shape);
std::string to_text(const Box& box);  // "[4:8, 0:16]"

// Joins boxes of one tensor, no two of which have a common element, to few boxes with the same
// elements, in the order of their first elements.  A whole tensor becomes one box, however it was
// cut.
std::vector<Box> join_boxes(std::span<const Box> boxes);

// The elements of `part` as runs that are contiguous both in `from` and in `to` (each row-major;
// part lies inside both), in increasing order of the position in `from`.
class Runs {
 public:
  Runs(const Box& part, const Box& from, const Box& to);
  bool done() const { return index_ == count_; }
  int64_t from() const { return from_; }  // element positions of the current run
  int64_t to() const { return to_; }
  int64_t length() const { return length_; }  // of every run
  void next();
  // Moves to the first run that ends after position `from`; done() if none does.
  void seek(int64_t from);

 private:
  void move_to(int64_t index);
  int outer_dims_ = 0;
  int64_t index_ = 0, count_ = 1, length_ = 1, from_ = 0, to_ = 0;
  std::array<int64_t, Shape::kMaxDims> extent_{}, at_{}, from_stride_{}, to_stride_{};
};

}  // namespace ashlar::checkpoint
