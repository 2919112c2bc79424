// Reads tensors by native name, slab by slab, for tools on whole models, which never hold one in
// memory.
//
// Errors   those of HfModel (kData) and of StepReader (kCorrupt: every chunk that is read is
//          checked).
// Threads  const members from several threads.
#pragma once

#include <memory>
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

class TunedTensors;

// The tensors of a step or a Hugging Face directory, without aliases.  Of a source that is tuned
// (ModelSource::tuned), the tensors of the whole model.
class StoredTensors final : public TensorReader {
 public:
  explicit StoredTensors(checkpoint::StepReader step);
  explicit StoredTensors(HfModel model);
  StoredTensors(FileSystem& files, const ModelSource& source);
  StoredTensors(StoredTensors&&);
  ~StoredTensors() override;

  // See StepReader; nothing happens unless both are steps.
  void share_memory_with(const StoredTensors& other) {
    if (step_ && other.step_) step_->share_memory_with(*other.step_);
  }

  // Whether the types of the tensors are those of a Hugging Face directory.
  bool hugging_face() const;
  const std::string& directory() const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in model order
  const StoredTensor* find(const std::string& name) const;               // null: not there
  // Null: the source is not tuned.
  const TunedTensors* tuned() const { return tuned_.get(); }
  // The type to read it as without loss: its own, except F16 of Hugging Face.
  DType read_type(const StoredTensor& tensor) const;

  void read(std::span<const Piece> pieces) const override;
  DType type_of(const std::string& name) const override;
  BytePosition position_of(const std::string& name) const override;

 private:
  void list_step();
  void add(StoredTensor tensor);
  std::optional<checkpoint::StepReader> step_;
  std::optional<HfModel> model_;
  std::unique_ptr<const TunedTensors> tuned_;  // else it reads
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> number_of_;          // in tensors_
  std::unordered_map<std::string, BytePosition> position_of_;  // of a step
};

// Opens a Hugging Face directory, a step, or the newest good step of a root.
// Errors: kConfig if it is none of them.
StoredTensors open_tensors(FileSystem& files, const std::string& path, Log& log);

}  // namespace ashlar::models
