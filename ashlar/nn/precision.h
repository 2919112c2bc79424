// The element types of a run, and their names in recipes and flags.
#pragma once

#include <string_view>

#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::nn {

// bf16 {F32 or BF16, F32, BF16, BF16}, fp32 {F32, ...}, fp64 {F64, ...}.
struct Types {
  DType stream;      // residual stream and its gradient
  DType wide;        // parameters, their gradients, statistics, sums over ranks and turns
  DType activation;  // inputs and outputs of products, and their gradients
  DType compute;     // type in which products are computed
  // kConfig if a bf16 stream meets other products.
  static Types of(DType compute, StreamType stream = StreamType::kF32);
};

// The meaning of `auto` precision on this machine: bf16 if the CPU multiplies it faster, else fp32.
DType auto_compute();
// The compute type that `precision` means on this machine.
DType resolve_precision(Precision precision);
Precision precision_of(DType compute);           // never kAuto
std::string_view precision_name(DType compute);  // "bf16"
// The meaning of the flag --dtype on this machine; kConfig for a word that train.precision does not
// accept.
DType parse_precision(std::string_view word);

}  // namespace ashlar::nn
