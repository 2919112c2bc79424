// A Hugging Face model directory: config.json and safetensors files, whole or sharded by an index,
// in the native or the legacy layout.  Reads any box of any tensor under its native name, with
// conversion; hf/write.h writes whole models.
//
// Source   docs/hugging-face.md.
// Errors   kData, one line, for a directory that is not a complete and consistent model:
//          missing, unexpected or duplicate tensors, shapes that contradict the config (naming
//          both), element types other than BF16, F16, F32, F64, an lm_head.weight that is not the
//          embedding.  The files are data; nothing in them is executed.
// Threads  Several threads may read from one HfModel.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/models/hf/config.h"
#include "ashlar/models/hf/names.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::models {

// Reads config.json of such a directory, and nothing else.
HfConfig read_hf_config(FileSystem& file_system, const std::string& directory);

class HfModel {
 public:
  // Opens and checks everything but the values.  `file_system` must outlive the model.
  static HfModel open(FileSystem& file_system, const std::string& directory);
  HfModel(HfModel&&) noexcept;
  HfModel& operator=(HfModel&&) noexcept;
  ~HfModel();

  const std::string& directory() const;
  const HfConfig& config() const;
  const ModelSpec& spec() const;
  HfLayout layout() const;  // of the tensor names
  // Under native names; the type is that of the files, the widest of several.
  std::span<const LogicalTensor> tensors() const;
  // Notes name ids and tensors that are ignored, warnings the members of config.json that are not
  // followed, one line each.
  std::span<const std::string> notes() const;
  std::span<const std::string> warnings() const;

  // Fills piece.data (F64, F32 or BF16; piece.box.length elements) with that box of the tensor
  // named piece.logical.name.  Equal types are copied bit for bit; others use copy_convert().
  void read(const Piece& piece) const;

 private:
  struct Impl;
  explicit HfModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ashlar::models
