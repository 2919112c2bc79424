// The tensors of a model as Hugging Face files name them.
//
// The native name is the logical name everywhere else in the program.  ZAYA1's legacy layout counts
// attention and experts as a layer each (block l: layers 2l and 2l+1), keeps each residual merge at
// the top of the next sub-layer, and stores every expert apart; stacked along dim 0 the experts are
// the native tensor, byte for byte.  Other families' files store every expert apart too, gate and
// up as two tensors; stacked in turns these are the native gate_up_proj.  Some files have one
// tensor for several native ones, whose rows lie in it head by head (HfMixerTensor).
//
// Source  docs/hugging-face.md; released ZAYA1 models, arXiv 2511.17127 and 2605.05365.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/models/hf/config.h"
#include "ashlar/spec/model_spec.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::models {

// Files may store a head of its own name, though it is the embedding.
inline constexpr std::string_view kHfHead = "lm_head.weight",
                                  kHfEmbedding = "model.embed_tokens.weight";

// Rows (elements of dim 0) of a file's tensor that belong to a native tensor: `each` rows from
// `begin` on, out of every `stride`.  One after another they are part `part`, along dim 0, of the
// native tensor's `num_parts` equal ones.
struct FileRows {
  size_t native = 0;  // index into the native tensors
  int64_t part = 0, num_parts = 1;
  int64_t begin = 0, each = 0, stride = 0;
};
// One tensor of a file, and the rows of it that belong to each native tensor.
struct FileTensor {
  std::string name;
  Shape shape;
  std::vector<FileRows> rows;
};
// The files' tensors of a model of these blocks, in the order of `natives`; the parts of one tensor
// follow each other.
std::vector<FileTensor> file_tensors(std::span<const LogicalTensor> natives,
                                     std::span<const BlockSpec> blocks, HfLayout layout,
                                     const HfNames& names = {});
// The number of these tensors, without listing them.
int64_t num_file_tensors(const ModelSpec& spec, HfLayout layout, const HfNames& names = {});
// The buffers that files of such a model have beside them (HfBuffer).
struct FileBuffer {
  std::string name;
  const LinearSpec* mixer;
  const HfBuffer* buffer;
};
std::vector<FileBuffer> file_buffers(std::span<const BlockSpec> blocks, const HfNames& names);

// The name as file_tensors() spells it; some legacy files have smoe_block for zaya_block.
std::string canonical_name(std::string_view name);

}  // namespace ashlar::models
