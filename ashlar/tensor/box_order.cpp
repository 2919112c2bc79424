#include "ashlar/tensor/box_order.h"

namespace ashlar {

int64_t index_in_tensor(const Shape& tensor, const Box& box, int64_t i) {
  int64_t index = 0, stride = 1;
  for (int dim = tensor.ndim() - 1; dim >= 0; --dim) {
    index += (box.offset[dim] + i % box.length[dim]) * stride;
    i /= box.length[dim];
    stride *= tensor[dim];
  }
  return index;
}

int64_t elements_before(const Shape& tensor, const Box& box, int64_t index) {
  int64_t stride = tensor.numel(), row = box.length.numel(), count = 0;
  if (index >= stride) return row;
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    stride /= tensor[dim];
    row /= box.length[dim];
    const int64_t at = index / stride - box.offset[dim];
    index %= stride;
    count += std::clamp<int64_t>(at, 0, box.length[dim]) * row;
    if (at < 0 || at >= box.length[dim]) break;  // outside of the box: no row is cut
  }
  return count;
}

void for_each_run(const Shape& tensor, const Box& box, int64_t begin, int64_t end,
                  function_ref<void(int64_t index, int64_t length)> body) {
  int64_t run = 1;
  for (int dim = tensor.ndim() - 1; dim >= 0; --dim) {
    run *= box.length[dim];
    if (box.length[dim] != tensor[dim]) break;
  }
  for (int64_t i = begin; i < end;) {
    const int64_t length = std::min(end - i, run - i % run);
    body(index_in_tensor(tensor, box, i), length);
    i += length;
  }
}

}  // namespace ashlar
