// Writes a whole model as a Hugging Face directory, slab by slab: at most kMaxWorkers slabs of
// kSlabElements are in memory, with what the reader takes for each.
//
// Source   docs/formats/model.md.
// Errors   kConfig if the target exists; those of the reader.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ashlar/checkpoint/hf_config.h"
#include "ashlar/checkpoint/tensor_reader.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

struct HfWriteOptions {
  HfLayout layout = HfLayout::kNative;
  DType dtype = DType::kBF16;  // or kF32, kF64; balancing biases are never less than F32
  int64_t max_file_bytes = 5'000'000'000;         // of tensors; above it: shards and an index
  std::map<std::string, std::string> files = {};  // name -> content, such as tokenizer.model's
  Log* log = nullptr;                             // for progress lines
  int num_threads = 0;                            // 0: kMaxWorkers
};

// Writes `directory` with config.json, generation_config.json and the tensors tensors_of(spec) as
// the reader has them.  All is written to DIRECTORY.tmp (what a killed run left there is removed),
// synced and renamed: the target is complete or absent.  The bytes depend on the tensors and the
// options, not on threads.
void write_hf_model(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                    TensorsOf tensors_of, const TensorReader& reader,
                    const HfWriteOptions& options);

}  // namespace ashlar::checkpoint
