// Reads tensors by native name, slab by slab, for tools on whole models, which never hold one in
// memory.
//
// Errors   those of HfModel (kData) and of StepReader (kCorrupt: every chunk that is read is
//          checked).
// Threads  const members from several threads.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/source.h"

namespace ashlar::models {

// The byte at which a tensor begins if all files are laid end to end, each from a multiple of the
// size of chunks, and the size of its elements there.
struct BytePosition {
  int64_t begin = 0, element_bytes = 1;
};

class TensorReader {
 public:
  virtual ~TensorReader() = default;
  // Fills the pieces: any boxes of tensors by native name.  Types of floats are converted among
  // F64, F32 and BF16; equal ones are copied bit for bit.
  virtual void read(std::span<const Piece> pieces) const = 0;
  // A type that holds its elements without loss: usually the stored one.
  virtual DType type_of(const std::string& name) const = 0;
  // Reading costs least in the order of positions, and from one border of chunks to another.
  virtual BytePosition position_of(const std::string& name) const = 0;
};

struct StoredTensor {
  LogicalTensor logical;
  checkpoint::Component component = checkpoint::Component::kModel;
};

// The tensors of a step or a Hugging Face directory, without aliases.
class StoredTensors final : public TensorReader {
 public:
  explicit StoredTensors(checkpoint::StepReader step);
  explicit StoredTensors(HfModel model);
  StoredTensors(FileSystem& files, const ModelSource& source);

  // See StepReader; nothing happens unless both are steps.
  void share_memory_with(const StoredTensors& other) {
    if (step_ && other.step_) step_->share_memory_with(*other.step_);
  }

  bool hugging_face() const { return model_.has_value(); }
  const std::string& directory() const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in model order
  // The type to read it as without loss: its own, except F16 of Hugging Face.
  DType read_type(const StoredTensor& tensor) const;

  void read(std::span<const Piece> pieces) const override;
  DType type_of(const std::string& name) const override;
  BytePosition position_of(const std::string& name) const override;

 private:
  void list_step();
  std::optional<checkpoint::StepReader> step_;
  std::optional<HfModel> model_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, DType> type_of_;
  std::unordered_map<std::string, BytePosition> position_of_;  // of a step
};

// Opens a Hugging Face directory, a step, or the newest good step of a root.
// Errors: kConfig if it is none of them.
StoredTensors open_tensors(FileSystem& files, const std::string& path, Log& log);

}  // namespace ashlar::models
