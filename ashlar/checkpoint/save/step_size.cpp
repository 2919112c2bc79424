#include "ashlar/checkpoint/save/step_size.h"

#include <fmt/core.h>

#include <algorithm>

#include "ashlar/checkpoint/format/index_format.h"
#include "ashlar/checkpoint/writers/timing.h"

namespace ashlar::checkpoint {

void StepMeter::add(const FilePlan& file) {
  ++size_.files;
  counts_[kFile] += 1;
  counts_[kStr] += int64_t(file.file.path.size());
  counts_[kCrc] += num_chunks(file.file.size_bytes);
}

// Counts extra/timing.json, which is in no writer's plan, as a file of at most 4 MiB: enough for
// some 10,000 writers.
void StepMeter::add_timing() {
  FilePlan timing;
  timing.file.path = fmt::format("extra/{}", kTimingFile);
  timing.file.size_bytes = 1;
  add(timing);
  ++counts_[kBlob];
  counts_[kStr] += int64_t(kTimingFile.size());
}

void StepMeter::add(const SavePlan& plan) {
  int64_t writer_files = 0, writer_boxes = 0, writer_bytes = 0;
  const auto holds_data = [](const IndexFile& file) {
    return file.component == Component::kModel || file.component == Component::kOptim;
  };
  for (const FilePlan& file : plan.files) {
    add(file);
    if (!holds_data(file.file)) continue;
    ++writer_files;
    writer_bytes += file.file.size_bytes;
  }
  for (const IndexTensor& tensor : plan.index.tensors) {
    Stored& stored = tensors_[tensor.logical.name];
    stored.ndim = tensor.logical.global_shape.ndim();
    stored.num_boxes += int64_t(tensor.boxes.size());
    if (holds_data(plan.files[tensor.boxes[0].file].file))
      writer_boxes += int64_t(tensor.boxes.size());
  }
  for (const IndexBlob& blob : plan.index.blobs) {
    ++counts_[kBlob];
    counts_[kStr] += int64_t(blob.name.size());
  }
  aliases_.insert(plan.manifest.aliases.begin(), plan.manifest.aliases.end());
  ++num_writers_;
  size_.data_files += writer_files;
  size_.data_bytes += writer_bytes;
  size_.max_writer_files = std::max(size_.max_writer_files, writer_files);
  size_.max_writer_boxes = std::max(size_.max_writer_boxes, writer_boxes);
  size_.max_writer_bytes = std::max(size_.max_writer_bytes, writer_bytes);
}

void StepMeter::add(const StepMeter& others) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += others.counts_[i];
  for (const auto& [name, stored] : others.tensors_) {
    Stored& here = tensors_[name];
    here.ndim = stored.ndim;
    here.num_boxes += stored.num_boxes;
  }
  aliases_.insert(others.aliases_.begin(), others.aliases_.end());
  num_writers_ += others.num_writers_;
  const StepSize& size = others.size_;
  size_.files += size.files;
  size_.data_files += size.data_files;
  size_.data_bytes += size.data_bytes;
  size_.max_writer_files = std::max(size_.max_writer_files, size.max_writer_files);
  size_.max_writer_boxes = std::max(size_.max_writer_boxes, size.max_writer_boxes);
  size_.max_writer_bytes = std::max(size_.max_writer_bytes, size.max_writer_bytes);
}

StepSize StepMeter::size() const {
  StepMeter step = *this;
  step.add_timing();
  return step.size_of_all();
}

StepSize StepMeter::size_of_all() const {
  SectionCounts counts = counts_;
  const auto add = [&](const std::string& name, const Stored& stored) {
    counts[kStr] += int64_t(name.size());
    counts[kTensor] += 1;
    counts[kDim] += stored.ndim;
    counts[kBox] += stored.num_boxes;
    counts[kPair] += stored.num_boxes * stored.ndim;
  };
  for (const auto& [name, stored] : tensors_) add(name, stored);
  for (const auto& [name, stored] : aliases_) add(name, tensors_.at(stored));
  StepSize size = size_;
  size.boxes = counts[kBox];
  size.index_bytes = index_bytes(counts);
  size.mean_writer_bytes = double(size.data_bytes) / double(std::max<int64_t>(1, num_writers_));
  return size;
}

}  // namespace ashlar::checkpoint
