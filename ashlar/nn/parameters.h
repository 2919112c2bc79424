// What a layer says about each of its tensors: one visitor that init, optimizer, checkpoint and
// parity tests all use.  Names and shapes are the native Hugging Face ones.
#pragma once

#include <string>

#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/context.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::nn {

enum class Init : uint8_t {
  kNormal,             // normal, init.std
  kOutput,             // the same; times 1/sqrt(2L) with init.output_scale = depth
  kConvDepthwise,      // normal, or uniform +-1/sqrt(taps) with init.conv = uniform
  kConvGrouped,        // normal, or uniform +-1/sqrt(taps * head_dim)
  kConvDepthwiseBias,  // 0, or as its weight with init.conv = uniform
  kConvGroupedBias,
  kTemp,  // init.temp
  kOne,
  kZero,
  kBalancing,  // 0, the last one -1
};

struct ParameterInfo {
  std::string name;
  Init init = Init::kNormal;
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool decay = false;
  bool buffer = false;       // part of the state, not trained by gradient
  bool product = false;      // its gradient is one matrix product, which can overwrite old values
  int64_t num_matrices = 1;  // experts of a stack
};

// The tensor as one piece: all of it is here.
Piece whole_piece(const ParameterInfo& info, const Tensor& tensor);

// Where tensors of a layer lie together in memory: products are read through their packed operands
// only and make up nearly all of a block; the rest is read directly, all the time.
enum class Part : uint8_t {
  kProducts,  // ParameterInfo::product, the embedding apart
  kVectors,
  kBuffers,
};

using Visitor = function_ref<void(const ParameterInfo&, const Tensor&)>;

// The three element types of a run: bf16 {F32, BF16, BF16}, fp32 {F32, F32, F32}, fp64 {F64, F64,
// F64}.
struct Types {
  DType stream;      // residual stream, statistics, parameters, gradients
  DType activation;  // what meets products, and is kept for their gradients
  DType compute;     // how products are computed
  static Types of(DType compute);
};

// What `auto` precision means on this machine: bf16 where the CPU multiplies it faster, else fp32.
DType auto_compute();

}  // namespace ashlar::nn
