// Ways to lay tensors over ranks, and where each element of a piece lies in its tensor, the slow way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/parallel/muon_plan.h"

namespace ashlar::parallel::testing_support {

struct TestTensor {
  std::string name;
  Shape shape;
  int64_t num_matrices = 1;
  bool muon = true;
};

// What a rank keeps of a tensor, boxes included.
struct Kept {
  int64_t tensor = 0;
  int cover = 0;
  std::vector<Box> boxes;
  int64_t begin = 0, end = 0;
};

struct Layout {
  std::string name;
  std::vector<TestTensor> tensors;
  std::vector<std::vector<Kept>> ranks;

  int num_ranks() const { return int(ranks.size()); }
  // Muon tensors only, numbered as in muon_tensors().
  std::vector<MuonTensor> muon_tensors() const {
    std::vector<MuonTensor> list;
    for (const TestTensor& t : tensors)
      if (t.muon) list.push_back({t.shape, t.num_matrices});
    return list;
  }
  int64_t muon_number(int64_t tensor) const {
    return std::count_if(tensors.begin(), tensors.begin() + tensor,
                         [](const TestTensor& t) { return t.muon; });
  }
  void add_holdings(int rank, std::vector<Holding>& list) const {
    for (const Kept& kept : ranks[size_t(rank)])
      if (tensors[size_t(kept.tensor)].muon)
        list.push_back({muon_number(kept.tensor), kept.cover, kept.boxes, kept.begin, kept.end});
  }
  MuonPlan plan(int rank, MuonMode mode) const {
    return plan_muon(
        muon_tensors(), [&](int r, std::vector<Holding>& list) { add_holdings(r, list); }, rank,
        num_ranks(), mode);
  }
};

// Index in the tensor of every element kept, in order.
inline std::vector<int64_t> indices_of(const Shape& shape, const Kept& kept) {
  std::vector<int64_t> all;
  for (const Box& box : kept.boxes) {
    for (int64_t i = 0; i < box.length.numel(); ++i) {
      int64_t rest = i, index = 0, stride = 1;
      for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
        index += (box.offset[dim] + rest % box.length[dim]) * stride;
        rest /= box.length[dim];
        stride *= shape[dim];
      }
      all.push_back(index);
    }
  }
  return {all.begin() + kept.begin, all.begin() + kept.end};
}

// Elements [begin, end) of all tensors laid end to end, as pieces of tensors; each tensor is the
// given boxes.
inline void add_range(const std::vector<std::vector<Box>>& boxes, int64_t begin, int64_t end,
                      int cover, std::vector<Kept>& list) {
  int64_t before = 0;
  for (size_t t = 0; t < boxes.size(); ++t) {
    int64_t numel = 0;
    for (const Box& box : boxes[t]) numel += box.length.numel();
    const int64_t from = std::max(begin - before, int64_t{0}), to = std::min(end - before, numel);
    if (from < to) list.push_back({int64_t(t), cover, boxes[t], from, to});
    before += numel;
  }
}

inline std::vector<std::vector<Box>> whole_boxes(const std::vector<TestTensor>& tensors) {
  std::vector<std::vector<Box>> boxes;
  for (const TestTensor& t : tensors) boxes.push_back({Box::whole(t.shape)});
  return boxes;
}
inline int64_t numel_of(const std::vector<std::vector<Box>>& boxes) {
  int64_t numel = 0;
  for (const auto& list : boxes)
    for (const Box& box : list) numel += box.length.numel();
  return numel;
}

// Equal contiguous chunks of everything, parameter boundaries ignored.
inline Layout contiguous(std::string name, std::vector<TestTensor> tensors, int num_ranks) {
  Layout layout{std::move(name), std::move(tensors), {}};
  const auto boxes = whole_boxes(layout.tensors);
  const int64_t chunk = (numel_of(boxes) + num_ranks - 1) / num_ranks;
  for (int rank = 0; rank < num_ranks; ++rank)
    add_range(boxes, rank * chunk, (rank + 1) * chunk, 0, layout.ranks.emplace_back());
  return layout;
}

// Every bucket of everything is cut evenly among all ranks.
inline Layout bucketed(std::string name, std::vector<TestTensor> tensors, int num_ranks,
                       int64_t bucket) {
  Layout layout{std::move(name), std::move(tensors), {}};
  const auto boxes = whole_boxes(layout.tensors);
  const int64_t total = numel_of(boxes);
  layout.ranks.resize(size_t(num_ranks));
  for (int64_t begin = 0; begin < total; begin += bucket) {
    const int64_t length = std::min(bucket, total - begin);
    for (int rank = 0; rank < num_ranks; ++rank)
      add_range(boxes, begin + length * rank / num_ranks, begin + length * (rank + 1) / num_ranks,
                0, layout.ranks[size_t(rank)]);
  }
  return layout;
}

// One tensor cut at the given elements, rank after rank; equal cuts leave a rank empty.
inline Layout cut_at(std::string name, TestTensor tensor, const std::vector<int64_t>& cuts) {
  Layout layout{std::move(name), {std::move(tensor)}, {}};
  const auto boxes = whole_boxes(layout.tensors);
  for (size_t rank = 0; rank + 1 < cuts.size(); ++rank)
    add_range(boxes, cuts[rank], cuts[rank + 1], 0, layout.ranks.emplace_back());
  return layout;
}

// Box of part `i` of `count` along `dim`; with `halves` of both halves of the dim, as gate and up.
inline std::vector<Box> slice_boxes(const Shape& shape, int dim, int i, int count, bool halves) {
  std::vector<Box> boxes;
  const int num = halves ? 2 : 1;
  const int64_t half = shape[dim] / num;
  for (int h = 0; h < num; ++h) {
    Box& box = boxes.emplace_back(Box::whole(shape));
    const int64_t begin = half * i / count, end = half * (i + 1) / count;
    box.offset[dim] = h * half + begin;
    box.length[dim] = end - begin;
  }
  return boxes;
}

}  // namespace ashlar::parallel::testing_support
