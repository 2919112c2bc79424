// Launches of kernels/gpu: products of groups, biases.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// linear.h: the products of groups in one launch, C_g = A_g B_g^T, A_g B_g or A_g^T B_g, with sums
// in fp32.  Matrices are stored row by row; that of group g begins g group_strides after the first.
struct ProductMatrix {
  Elements elements;
  int64_t stride, group_stride;  // in elements
  bool by_vectors;
};
enum class LinearPass { kForward, kBackwardInput, kBackwardWeight };
struct GroupedProduct {
  LinearPass pass;
  bool in_bf16;  // operands are rounded to bf16 and sums are those of matrix units; else fp32
  ProductMatrix a, b, c;
  int32_t num_groups, rows, columns, depth;  // rows and columns of C_g
  // Where groups own rows, those of A and C, or of A and B in kBackwardWeight: the group_strides of
  // these are 0, and `rows`, or `depth`, is the number of all.  Null: each group has all rows.
  const int32_t* row_of_group;
  bool accumulates;
  int32_t side;  // of the part of C that a block makes, one of kProductSides
  // Parts into which kBackwardWeight cuts the depth; C of a part begins at part * c_part_stride.
  int32_t parts;
  int64_t c_part_stride;
};
inline constexpr int32_t kProductSides[] = {64, 128};
std::string launch(const GroupedProduct&);

// bias.h: y += b; rows of y lie `stride` elements apart, as those of dy below.
struct BiasForward {
  const float* b;
  Elements y;
  int64_t rows, width, stride;
  bool by_vectors;
};
std::string launch(const BiasForward&);

// bias.h: the partials [ceil(rows / kPartialRows), width] of db.
struct BiasBackward {
  Elements dy;
  float* partials;
  int64_t rows, width, stride;
  bool by_vectors;
};
std::string launch(const BiasBackward&);

}  // namespace ashlar::device
