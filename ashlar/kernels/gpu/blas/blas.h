// Dense products on the memory of a device, by a library: what cuBLASLt, hipBLASLt and the CPU's
// own products have in common.
//
// Matrices  are row-major; rows lie `stride` elements apart, the matrices of a stack
//           `stack_stride`.
// Types     a and b: both F32 or both BF16; c and d: F32, or BF16 with operands in BF16.  Sums are
//           in fp32, and operands in F32 are never rounded.
// Workspace memory of the device at a multiple of 16; no library takes more than it has.
// Order     with the launches of launch.h: a product begins after those before it.
// Errors    kDevice.
#pragma once

#include <string>

#include "ashlar/kernels/context.h"

namespace ashlar::kernels::gpu::blas {

struct Stack {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0, stack_stride = 0;
};

// d [rows, cols] = alpha a [rows, depth] b [depth, cols] + beta c, for each of `count` matrices.
// transposes_a: a lies as [depth, rows], likewise b.  With beta 0 c is not read; d may be c, with
// the same strides.  All sizes are positive.
struct Product {
  int64_t count = 1, rows, cols, depth;
  Stack a, b, c, d;
  bool transposes_a = false, transposes_b = false;
  float alpha = 1, beta = 0;
};

struct Table {
  void (*multiply)(const Context&, const Product&, const Tensor& workspace);
  // Name and version of the library, which decide about bits.
  std::string (*description)();
};

extern const Table kReference;  // memory of the host: the emulator
extern const Table kCuda;       // cuBLASLt (cuda.h)
extern const Table kHip;        // refuses: hipBLASLt is not called yet

// A product by the table of the device, a launch; on meta it is only counted.
void multiply(const Context& ctx, const Product& product, const Tensor& workspace);

// The workspace of a product, by the device's spec.
int64_t workspace_bytes(const Context&);

// The table of the device that this program has.
const Table& table();

}  // namespace ashlar::kernels::gpu::blas
