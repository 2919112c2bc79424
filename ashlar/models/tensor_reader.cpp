#include "ashlar/models/tensor_reader.h"

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/models/path.h"
#include "ashlar/models/step_model.h"

namespace ashlar::models {
namespace {

checkpoint::LoadOptions options_of_slabs() {
  checkpoint::LoadOptions options;
  options.only_these = true;
  options.reads_in_flight = 1;  // many slabs are read at once
  for (const DType from : {DType::kF64, DType::kF32, DType::kBF16})
    for (const DType to : {DType::kF64, DType::kF32, DType::kBF16})
      if (from != to) options.cast.emplace_back(from, to);
  return options;
}

}  // namespace

StoredTensors::StoredTensors(checkpoint::StepReader step) : step_(std::move(step)) {
  list_step();
}

StoredTensors::StoredTensors(HfModel model) : model_(std::move(model)) {
  for (const LogicalTensor& logical : model_->tensors()) {
    tensors_.push_back({logical, checkpoint::Component::kModel});
    type_of_[logical.name] = logical.dtype;
  }
}

StoredTensors::StoredTensors(FileSystem& files, const ModelSource& source)
    : StoredTensors(source.hugging_face
                        ? StoredTensors(HfModel::open(files, source.resolved))
                        : StoredTensors(checkpoint::StepReader(files, source.resolved))) {
  if (step_) step_->set_reads(source.reads);
}

void StoredTensors::list_step() {
  const checkpoint::Index& index = step_->index();
  std::vector<int64_t> begin_of_file;
  int64_t total = 0;
  for (const checkpoint::IndexFile& file : index.files) {
    begin_of_file.push_back(total);
    total += checkpoint::num_chunks(file.size_bytes) * checkpoint::kChunkBytes;
  }
  for (const checkpoint::IndexTensor& tensor : index.tensors) {
    if (tensor.alias) continue;
    tensors_.push_back({tensor.logical, checkpoint::component_of(index, tensor)});
    type_of_[tensor.logical.name] = tensor.logical.dtype;
    if (tensor.boxes.empty()) continue;
    const checkpoint::IndexBox& first = tensor.boxes.front();
    position_of_[tensor.logical.name] = {begin_of_file[first.file] + first.byte_offset,
                                         size_of(tensor.logical.dtype)};
  }
}

const std::string& StoredTensors::directory() const {
  return step_ ? step_->directory() : model_->directory();
}

DType StoredTensors::read_type(const StoredTensor& tensor) const {
  const DType dtype = tensor.logical.dtype;
  return hugging_face() && dtype == DType::kF16 ? DType::kF32 : dtype;
}

void StoredTensors::read(std::span<const Piece> pieces) const {
  if (step_) {
    step_->load(pieces, options_of_slabs());
    return;
  }
  for (const Piece& piece : pieces) model_->read(piece);
}

DType StoredTensors::type_of(const std::string& name) const {
  return type_of_.at(name);
}

BytePosition StoredTensors::position_of(const std::string& name) const {
  const auto found = position_of_.find(name);
  return found == position_of_.end() ? BytePosition() : found->second;
}

StoredTensors open_tensors(FileSystem& files, const std::string& path, Log& log) {
  const std::string place = locate_model(files, path);
  if (files.stat(join(place, kConfigFile))) return StoredTensors(HfModel::open(files, place));
  return StoredTensors(checkpoint::open_checkpoint(files, place, log));
}

}  // namespace ashlar::models
