// Weights of 8 bits for inference: a packed operand rounded to integers of -127 to 127 times a
// scale for each row of W, so that the largest element of the row is 127.
//
// Memory   that of the packed operand, which it replaces; the master W stays as it is.
// Numerics the integers are exact in the type of the products: these sum as with weights that are
//          integers, in their usual order, and multiply by the scale in fp32.
#pragma once

#include "ashlar/kernels/linear.h"

namespace ashlar::kernels {

// w was packed, without `backward`, for products of this type, BF16 or F32; `forward` becomes I8.
// An operand stays as it is if engines read W itself, or if its memory has no room for the scales
// (K of very few).
void round_to_int8(const Context&, DType compute, Operand& w);

}  // namespace ashlar::kernels
