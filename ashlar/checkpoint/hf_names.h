// The tensors of a ZAYA1 model as Hugging Face files name them, in both layouts.
//
// The native name is the logical name everywhere else in the program.  The legacy layout counts
// attention and experts as a layer each (block l: layers 2l and 2l+1), keeps each residual merge at
// the top of the next sub-layer, and stores every expert apart; stacked along dim 0 they are the
// native tensor, byte for byte.
//
// Source  docs/formats/model.md; released ZAYA1 models, arXiv 2511.17127 and 2605.05365.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/hf_config.h"
#include "ashlar/spec/model_spec.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

// All native tensors in the order in which the forward pass meets them, head excluded (it is tied).
// The balancing biases are F32 buffers, or F64 if dtype is.
std::vector<LogicalTensor> native_tensors(const ModelSpec& spec, DType dtype = DType::kF32);

// One tensor of a file: `shape` elements that are part `part` of `num_parts` equal ones, along dim
// 0, of the native tensor.
struct FileTensor {
  std::string name;
  Shape shape;
  size_t native = 0;  // index into native_tensors()
  int64_t part = 0, num_parts = 1;
};
// In the order of native_tensors(); the parts of one tensor follow each other.
std::vector<FileTensor> file_tensors(const ModelSpec& spec, HfLayout layout);
int64_t num_file_tensors(const ModelSpec& spec, HfLayout layout);  // how many, without listing them

// The name as file_tensors() spells it: some legacy files say smoe_block for zaya_block.
std::string canonical_name(std::string_view name);

}  // namespace ashlar::checkpoint
