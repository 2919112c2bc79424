// Shape: the extents of a tensor, outermost first.  Box: an axis-aligned part of a tensor.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace ashlar {

class Shape {
 public:
  static constexpr int kMaxDims = 8;
  Shape() = default;  // 0-d: one element
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);
  int ndim() const { return ndim_; }
  int64_t operator[](int dim) const { return dims_[dim]; }
  int64_t& operator[](int dim) { return dims_[dim]; }
  int64_t numel() const;
  std::span<const int64_t> dims() const { return {dims_.data(), size_t(ndim_)}; }
  std::string to_string() const;  // "[3, 4]"
  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.dims().begin(), a.dims().end(), b.dims().begin(), b.dims().end());
  }

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

// Elements [offset, offset + length) of each dim of a tensor of some global shape.
struct Box {
  Shape offset, length;
  static Box whole(const Shape& shape);
  friend bool operator==(const Box&, const Box&) = default;
};

// The row-major elements [begin, end) of `box` as the fewest boxes that are each contiguous in its
// row-major memory: at most 2 * ndim - 1, in element order and in the coordinates of `box`.
// 0 <= begin <= end <= elements of the box; an empty range gives none.
std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end);

}  // namespace ashlar
