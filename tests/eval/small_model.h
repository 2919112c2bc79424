// tests/fixtures/hf_small with weights that a test changes, as a directory of a file system in
// memory.
#pragma once

#include <functional>

#include "ashlar/eval/load.h"
#include "ashlar/models/hf/model.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::eval {

struct SmallModel {
  using Change = std::function<void(const std::string& name, std::span<float> values)>;
  explicit SmallModel(const Change& change = {},
                      const std::function<void(ModelSpec&)>& shape = {}) {
    const auto disk = posix_files();
    const ModelSource saved = find_model(*disk, std::string(ASHLAR_FIXTURES) + "/hf_small", log);
    Allocator allocator(Device::kCpu);
    std::vector<OwnedTensor> owned;
    std::vector<Piece> pieces;
    for (const LogicalTensor& logical : nn::logical_tensors(saved.spec)) {
      owned.push_back(make_tensor(allocator, DType::kF32, logical.global_shape, Tag::kWeights));
      pieces.push_back({logical, Box::whole(logical.global_shape), owned.back().tensor});
    }
    read_weights(*disk, saved, pieces);
    if (change)
      for (const Piece& piece : pieces) change(piece.logical.name, piece.data.span<float>());
    ModelSpec spec = saved.spec;
    if (shape) shape(spec);
    models::HfWriteOptions options;
    options.dtype = DType::kF32;
    models::write_hf_model(*files, "model", spec, pieces, options);
    source = find_model(*files, "model", log);
  }

  std::vector<std::string> lines;
  Log log{[this](std::string_view line) { lines.emplace_back(line); }};
  std::unique_ptr<FileSystem> files = memory_files();
  ModelSource source;
};

}  // namespace ashlar::eval
