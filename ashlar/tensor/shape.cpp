#include "ashlar/tensor/shape.h"

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

// Appends the boxes of elements [begin, end) of `box`, which has length 1 in every dim before `d`:
// the end of a partial first row of dim d, the whole rows, the start of a partial last row.
void append_range(const Box& box, int d, int64_t begin, int64_t end, std::vector<Box>& pieces) {
  if (begin == end) return;
  int64_t row = 1;
  for (int inner = d + 1; inner < box.length.ndim(); ++inner) row *= box.length[inner];
  const auto rows = [&](int64_t first, int64_t count) {
    Box part = box;
    if (d < box.length.ndim()) {
      part.offset[d] += first;
      part.length[d] = count;
    }
    return part;
  };
  const int64_t first = begin / row, last = end / row;
  if (first == last)  // within one row, and not all of it
    return append_range(rows(first, 1), d + 1, begin % row, end % row, pieces);
  const int64_t whole = begin % row == 0 ? first : first + 1;
  if (whole > first) append_range(rows(first, 1), d + 1, begin % row, row, pieces);
  if (last > whole) pieces.push_back(rows(whole, last - whole));
  if (end % row != 0) append_range(rows(last, 1), d + 1, 0, end % row, pieces);
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : ndim_(int(dims.size())) {
  ASHLAR_ASSERT(ndim_ <= kMaxDims);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (const int64_t extent : dims()) product *= extent;
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int d = 0; d < ndim_; ++d) text += (d ? ", " : "") + std::to_string(dims_[d]);
  return text + "]";
}

Box Box::whole(const Shape& shape) {
  Box box{shape, shape};
  for (int d = 0; d < shape.ndim(); ++d) box.offset[d] = 0;
  return box;
}

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  ASHLAR_ASSERT(0 <= begin && begin <= end && end <= box.length.numel());
  std::vector<Box> pieces;
  append_range(box, 0, begin, end, pieces);
  return pieces;
}

}  // namespace ashlar
