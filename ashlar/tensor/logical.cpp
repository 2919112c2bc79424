#include "ashlar/tensor/logical.h"

namespace ashlar {

MatrixShape matrix_shape(const Shape& global_shape, int64_t num_matrices) {
  ASHLAR_ASSERT(global_shape.ndim() >= 1 && global_shape.numel() > 0 && num_matrices >= 1);
  const int64_t cols = global_shape[global_shape.ndim() - 1];
  const int64_t num_rows = global_shape.numel() / cols;
  ASHLAR_ASSERT(num_rows % num_matrices == 0);
  return {num_rows / num_matrices, cols};
}

std::vector<Piece> pieces_of(const Parameter& parameter, const LogicalTensor& named,
                             const Tensor& data, bool split_among_copies) {
  const int64_t count = parameter.end - parameter.begin;
  ASHLAR_ASSERT(data.numel() == count);
  const int64_t copy = split_among_copies ? parameter.copy : 0,
                num_copies = split_among_copies ? parameter.num_copies : 1;
  ASHLAR_ASSERT(0 <= copy && copy < num_copies);
  const int64_t begin = parameter.begin + count * copy / num_copies,
                end = parameter.begin + count * (copy + 1) / num_copies;
  const Tensor elements = data.view({count});
  std::vector<Piece> pieces;
  int64_t box_begin = 0, at = begin - parameter.begin;
  for (const Box& box : parameter.boxes) {
    const int64_t box_end = box_begin + box.length.numel();
    const int64_t from = std::max(begin, box_begin), to = std::min(end, box_end);
    if (from < to)
      for (const Box& part : boxes_of_range(box, from - box_begin, to - box_begin)) {
        const int64_t next = at + part.length.numel();
        pieces.push_back({named, part, elements.slice(at, next).view(part.length)});
        at = next;
      }
    box_begin = box_end;
  }
  ASHLAR_ASSERT(at == end - parameter.begin && parameter.end <= box_begin);
  return pieces;
}

}  // namespace ashlar
