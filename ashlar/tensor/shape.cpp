#include "ashlar/tensor/shape.h"

#include "ashlar/core/error.h"

namespace ashlar {

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

}  // namespace ashlar
