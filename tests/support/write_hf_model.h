// A model in memory as a Hugging Face directory.
#pragma once

#include <cstring>
#include <map>
#include <span>
#include <string>

#include "ashlar/models/hf/write.h"
#include "ashlar/tensor/box_order.h"

namespace ashlar::models {

// Whole tensors.
class TensorsInMemory final : public TensorReader {
 public:
  explicit TensorsInMemory(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) by_name_[piece.logical.name] = piece.data;
  }
  void read(std::span<const Piece> pieces) const override {
    for (const Piece& piece : pieces) {
      const Tensor& whole = by_name_.at(piece.logical.name);
      int64_t done = 0;
      for_each_run(piece.logical.global_shape, piece.box, 0, piece.data.numel(),
                   [&](int64_t index, int64_t length) {
                     copy_convert({whole.data + index * size_of(whole.dtype), whole.dtype,
                                   Device::kCpu, Shape{length}},
                                  {piece.data.data + done * size_of(piece.data.dtype),
                                   piece.data.dtype, Device::kCpu, Shape{length}});
                     done += length;
                   });
    }
  }
  DType type_of(const std::string& name) const override { return by_name_.at(name).dtype; }
  BytePosition position_of(const std::string&) const override { return {}; }

 private:
  std::map<std::string, Tensor> by_name_;
};

inline void write_hf_model(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                           std::span<const Piece> tensors, const HfWriteOptions& options) {
  write_hf_model(files, directory, spec, TensorsInMemory(tensors), options);
}

}  // namespace ashlar::models
