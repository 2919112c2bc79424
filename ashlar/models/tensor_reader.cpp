#include "ashlar/models/tensor_reader.h"

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/models/path.h"
#include "ashlar/models/step_model.h"
#include "ashlar/models/tuned.h"

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
  for (const LogicalTensor& logical : model_->tensors())
    add({logical, checkpoint::Component::kModel});
}

StoredTensors::StoredTensors(FileSystem& files, const ModelSource& source)
    : StoredTensors(source.hugging_face
                        ? StoredTensors(HfModel::open(files, source.resolved))
                        : StoredTensors(checkpoint::StepReader(files, source.resolved))) {
  if (step_) step_->set_reads(source.reads);
  if (!source.tuned) return;
  auto trained = std::make_unique<const StoredTensors>(std::move(*step_));
  auto base = std::make_unique<const StoredTensors>(files, source.tuned->base);
  step_.reset();
  const LoraSpec& lora = source.tuned->lora;
  tuned_ = std::make_unique<const TunedTensors>(std::move(base), std::move(trained),
                                                lora.rank > 0 ? lora.scale() : 0.0);
  tensors_.clear();
  number_of_.clear();
  for (StoredTensor tensor : tuned_->base().tensors()) {
    tensor.logical.dtype = tuned_->type_of(tensor.logical.name);
    add(std::move(tensor));
  }
}

StoredTensors::StoredTensors(StoredTensors&&) = default;
StoredTensors::~StoredTensors() = default;

void StoredTensors::add(StoredTensor tensor) {
  number_of_[tensor.logical.name] = tensors_.size();
  tensors_.push_back(std::move(tensor));
}

const StoredTensor* StoredTensors::find(const std::string& name) const {
  const auto found = number_of_.find(name);
  return found == number_of_.end() ? nullptr : &tensors_[found->second];
}

bool StoredTensors::hugging_face() const {
  return tuned_ ? tuned_->base().hugging_face() : model_.has_value();
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
    add({tensor.logical, checkpoint::component_of(index, tensor)});
    if (tensor.boxes.empty()) continue;
    const checkpoint::IndexBox& first = tensor.boxes.front();
    position_of_[tensor.logical.name] = {begin_of_file[first.file] + first.byte_offset,
                                         size_of(tensor.logical.dtype)};
  }
}

const std::string& StoredTensors::directory() const {
  if (tuned_) return tuned_->base().directory();
  return step_ ? step_->directory() : model_->directory();
}

DType StoredTensors::read_type(const StoredTensor& tensor) const {
  const DType dtype = tensor.logical.dtype;
  return hugging_face() && dtype == DType::kF16 ? DType::kF32 : dtype;
}

void StoredTensors::read(std::span<const Piece> pieces) const {
  if (tuned_) return tuned_->read(pieces);
  if (step_) {
    step_->load(pieces, options_of_slabs());
    return;
  }
  for (const Piece& piece : pieces) model_->read(piece);
}

DType StoredTensors::type_of(const std::string& name) const {
  return tensors_[number_of_.at(name)].logical.dtype;
}

BytePosition StoredTensors::position_of(const std::string& name) const {
  if (tuned_) return tuned_->position_of(name);
  const auto found = position_of_.find(name);
  return found == position_of_.end() ? BytePosition() : found->second;
}

StoredTensors open_tensors(FileSystem& files, const std::string& path, Log& log) {
  const std::string place = locate_model(files, path);
  if (files.stat(join(place, kConfigFile))) return StoredTensors(HfModel::open(files, place));
  return StoredTensors(checkpoint::open_checkpoint(files, place, log));
}

}  // namespace ashlar::models
