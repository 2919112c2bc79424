// Boxes meeting boxes: intersection, and the contiguous runs by which a part of one row-major box
// is copied into another.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/tensor/shape.h"

namespace ashlar::checkpoint {

// nullopt: no common element.  Boxes of one tensor (equal ndim).
std::optional<Box> intersect(const Box& a, const Box& b);
// offset + length <= shape in every dim, without overflow.
bool inside(const Box& box, const Shape& shape);
std::string to_text(const Box& box);  // "[4:8, 0:16]"

// The same elements in few boxes, in the order of their first elements: one for the whole of a
// tensor, however it was cut.  Boxes of one tensor, no two of which have a common element.
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
  // Goes to the first run that ends behind position `from`; done() if none does.
  void seek(int64_t from);

 private:
  void move_to(int64_t index);
  int outer_dims_ = 0;
  int64_t index_ = 0, count_ = 1, length_ = 1, from_ = 0, to_ = 0;
  std::array<int64_t, Shape::kMaxDims> extent_{}, at_{}, from_stride_{}, to_stride_{};
};

}  // namespace ashlar::checkpoint
