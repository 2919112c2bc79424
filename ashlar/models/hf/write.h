// Writes a whole model as a Hugging Face directory, slab by slab: at most kMaxWorkers slabs of
// kSlabElements are in memory, with the reader's memory for each.
//
// Source   docs/hugging-face.md.
// Errors   kConfig if the target exists, or a finite value would become infinite in the type of the
//          file; those of the reader.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/models/companions.h"
#include "ashlar/models/hf/config.h"
#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

struct HfWriteOptions {
  HfLayout layout = HfLayout::kNative;
  // BF16, F16, F32 or F64 for all tensors; balancing biases are never less than F32.
  DType dtype = DType::kBF16;
  std::optional<ElementTypes> types = {};         // instead of dtype: one for each tensor
  int64_t max_file_bytes = 5'000'000'000;         // of tensors; more make shards and an index
  std::map<std::string, std::string> files = {};  // name -> content, such as tokenizer.model's
  Log* log = nullptr;                             // for progress lines
  int num_threads = 0;                            // 0: kMaxWorkers
};

// Values that the types of the files change.
struct HfWriteStats {
  int64_t values = 0;                 // of all tensors
  int64_t changed = 0, vanished = 0;  // changed at all; changed to 0
};

// Writes `directory` with config.json, the model's tensors as the reader has them, and
// `files`, to which generation_config.json is added if it is not among them.  All is written to
// DIRECTORY.tmp (what a killed run left there is removed), synced and renamed: the target is
// complete or absent.  The bytes depend on the tensors and the options, not on threads.
HfWriteStats write_hf_model(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                            const TensorReader& reader, const HfWriteOptions& options);

}  // namespace ashlar::models
