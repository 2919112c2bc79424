#include "ashlar/bench/checkpoint_workload.h"

#include <fmt/format.h>

#include <bit>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/pieces.h"

namespace ashlar::bench {
namespace {

std::vector<LogicalTensor> tensors(int64_t bytes, const Shape& shape) {
  std::vector<LogicalTensor> list;
  for (int64_t left = bytes; left > 0; left -= shape.numel() * size_of(DType::kF32))
    list.push_back({fmt::format("layers.{}.weight", list.size()), DType::kF32, shape});
  return list;
}

// The shape of tensors with `columns` columns and 16 to `most` rows, `count` of which have about
// `bytes` bytes.
Shape rows_for(int64_t bytes, int64_t count, int64_t most, int64_t columns) {
  return {std::clamp<int64_t>(bytes / (count * columns * size_of(DType::kF32)), 16, most), columns};
}

// The range of a dim that part `part` of `parts` has.
std::pair<int64_t, int64_t> share(int64_t extent, int part, int parts) {
  return {extent * part / parts, extent * (part + 1) / parts};
}

Box part_of(const Shape& shape, int dim, int part, int parts) {
  Box box = Box::whole(shape);
  const auto [begin, end] = share(shape[dim], part, parts);
  box.offset[dim] = begin;
  box.length[dim] = end - begin;
  return box;
}

// The part of every tensor that a rank holds, which may be empty.
std::vector<Parameter> holdings(const CheckpointWorkload& workload, const CheckpointLayout& layout,
                                int rank) {
  std::vector<Parameter> list;
  for (const LogicalTensor& logical : workload.tensors) {
    const Shape& shape = logical.global_shape;
    Parameter p;
    p.logical = logical;
    p.boxes = {Box::whole(shape)};
    if (layout.cut == WorkloadCut::kRows) p.boxes = {part_of(shape, 0, rank, layout.ranks)};
    if (layout.cut == WorkloadCut::kColumns)
      p.boxes = {part_of(shape, shape.ndim() - 1, rank, layout.ranks)};
    if (layout.cut == WorkloadCut::kGrid)
      p.boxes = {part_of(shape, 0, rank % layout.tp, layout.tp)};
    if (layout.cut == WorkloadCut::kCopies) p.copy = rank, p.num_copies = layout.ranks;
    p.end = p.boxes[0].length.numel();
    p.local_shape = p.boxes[0].length;
    list.push_back(p);
  }
  if (layout.cut != WorkloadCut::kFlat && layout.cut != WorkloadCut::kGrid) return list;
  int64_t total = 0;
  for (const Parameter& p : list) total += p.end;
  const auto [begin, end] = share(total, rank / layout.tp, layout.ranks / layout.tp);
  int64_t at = 0;
  for (Parameter& p : list) {
    const int64_t numel = p.end;
    p.begin = std::clamp<int64_t>(begin - at, 0, numel);
    p.end = std::clamp<int64_t>(end - at, 0, numel);
    at += numel;
  }
  return list;
}

}  // namespace

std::string CheckpointLayout::text() const {
  switch (cut) {
    case WorkloadCut::kRows:
      return fmt::format("{} ranks, rows", ranks);
    case WorkloadCut::kColumns:
      return fmt::format("{} ranks, columns", ranks);
    case WorkloadCut::kFlat:
      return fmt::format("{} ranks, flat", ranks);
    case WorkloadCut::kCopies:
      return fmt::format("{} ranks, copies", ranks);
    case WorkloadCut::kGrid:
      return fmt::format("{} ranks, tp {} x flat {}", ranks, tp, ranks / tp);
  }
  return "";
}

int64_t CheckpointWorkload::bytes() const {
  int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors)
    sum += tensor.global_shape.numel() * size_of(tensor.dtype);
  return sum;
}

std::vector<CheckpointWorkload> checkpoint_workloads(int64_t bytes, int ranks) {
  const CheckpointLayout rows{WorkloadCut::kRows, ranks}, columns{WorkloadCut::kColumns, ranks};
  return {
      {"small", "many small tensors", tensors(bytes, {256, 192}), rows, columns},
      {"large", "few large tensors", tensors(bytes, rows_for(bytes, 12, 16384, 4096)), rows,
       columns},
      // A third of the tensors, which every rank holds whole.
      {"copies", "what 8 data ranks hold alike",
       tensors(bytes / 3, rows_for(bytes, 48, 4096, 4096)),
       CheckpointLayout{WorkloadCut::kCopies, 8}, CheckpointLayout{WorkloadCut::kCopies, 4}},
      {"flat", "shares of ZeRO that end inside of rows", tensors(bytes, {409, 1111}),
       CheckpointLayout{WorkloadCut::kFlat, ranks},
       CheckpointLayout{WorkloadCut::kFlat, ranks + 1}},
      {"experts", "stacks of experts, some on each rank",
       tensors(bytes, {16, bytes < (int64_t(1) << 30) ? 32 : 2048, 512}), rows, columns},
      {"grid", "tensor and data ranks", tensors(bytes, rows_for(bytes, 48, 4096, 4096)),
       CheckpointLayout{WorkloadCut::kGrid, 8, 2}, CheckpointLayout{WorkloadCut::kGrid, 8, 4}},
      {"gather", "8 ranks to one", tensors(bytes, rows_for(bytes, 48, 4096, 4096)),
       CheckpointLayout{WorkloadCut::kGrid, 8, 2}, CheckpointLayout{WorkloadCut::kRows, 1}},
  };
}

CheckpointState::CheckpointState(const CheckpointWorkload& workload, const CheckpointLayout& layout,
                                 int rank) {
  int64_t numel = 0;
  for (Parameter& p : holdings(workload, layout, rank)) {
    if (p.begin == p.end) continue;
    numel += p.end - p.begin;
    held_.push_back({std::move(p), {}});
  }
  memory_.resize(size_t(numel));
  float* at = memory_.data();
  for (Held& held : held_) {
    const int64_t count = held.parameter.end - held.parameter.begin;
    held.data = tensor_over(std::span(at, size_t(count)));
    at += count;
  }
}

std::vector<Piece> CheckpointState::pieces(bool to_write) const {
  std::vector<KeptTensor> kept;
  for (const Held& held : held_)
    kept.push_back({&held.parameter, held.parameter.logical, held.data});
  return to_write ? pieces_to_write(kept) : pieces_of(kept);
}

// Calls body(place in memory, value of the element).
template <typename F>
void CheckpointState::for_each_element(F&& body) const {
  for (const Held& held : held_) {
    const Parameter& p = held.parameter;
    const uint64_t key = fnv1a64(p.logical.name);
    auto* at = reinterpret_cast<uint32_t*>(held.data.data);
    for_each_run(p.logical.global_shape, p.boxes[0], p.begin, p.end,
                 [&](int64_t index, int64_t length) {
                   for (int64_t i = 0; i < length; ++i)
                     body(*at++, uint32_t(uint64_t(index + i) * 0x9e3779b97f4a7c15 + key) >> 7);
                 });
  }
}

void CheckpointState::fill() {
  for_each_element([](uint32_t& element, uint32_t value) { element = value; });
}

void CheckpointState::clear() {
  memory_.assign(memory_.size(), 0.0f);
}

int64_t CheckpointState::wrong_elements() const {
  int64_t wrong = 0;
  for_each_element([&](uint32_t element, uint32_t value) { wrong += element != value; });
  return wrong;
}

}  // namespace ashlar::bench
