// Ways to lay tensors over ranks, and where each element of a piece lies in its tensor, the slow
// way.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/parallel/muon_plan.h"

namespace ashlar::parallel::testing_support {

struct TestTensor {
  std::string name;
  Shape shape;
  int64_t num_matrices = 1;
  bool muon = true;
};

// A rank's part of a tensor, boxes included.
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
    std::vector<int64_t> number;
    for (const TestTensor& t : tensors)
      number.push_back(number.empty() ? 0 : number.back() + (&t - 1)->muon);
    for (const Kept& kept : ranks[size_t(rank)])
      if (tensors[size_t(kept.tensor)].muon)
        list.push_back({number[size_t(kept.tensor)], kept.cover, kept.boxes, kept.begin, kept.end});
  }
  MuonPlans plans(MuonMode mode) const {  // as long as this layout
    return {muon_tensors(),
            [this](int rank, const std::optional<MatrixNumber>& only, std::vector<Holding>& list) {
              const size_t before = list.size();
              add_holdings(rank, list);
              if (only)
                list.erase(
                    std::remove_if(list.begin() + int64_t(before), list.end(),
                                   [&](const Holding& h) { return h.tensor != only->tensor; }),
                    list.end());
            },
            num_ranks(), mode};
  }
  MuonPlan plan(int rank, MuonMode mode) const { return plans(mode).of(rank); }
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
  for (size_t t = 0; t < boxes.size() && before < end; ++t) {
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

// Matrices of several sizes, tall and wide, between element-wise tensors.
inline std::vector<TestTensor> small_model() {
  return {{"embed", {37, 5}, 1, false},
          {"q", {24, 10}},
          {"norm", {11}, 1, false},
          {"experts.gate_up_proj", {5, 12, 9}, 5},
          {"experts.down_proj", {5, 9, 6}, 5},
          {"split_gate_up", {3, 8, 7}, 6},
          {"router", {3, 10}},
          {"wide", {6, 40}},
          {"large", {70, 150}}};
}

// Tensors cut over tp ranks by rows, columns, or rows of gate and up; what is left over dp ranks.
inline Layout tensor_parallel(int tp, int dp, bool copies) {
  Layout layout{fmt::format("tp{}_dp{}{}", tp, dp, copies ? "_copies" : ""),
                {{"rows", {24, 10}},
                 {"columns", {9, 26}},
                 {"experts.gate_up_proj", {4, 12, 9}, 4},
                 {"split_gate_up", {4, 12, 9}, 8},
                 {"experts.down_proj", {4, 9, 6}, 4},
                 {"everywhere", {7, 8}}},
                {}};
  const std::vector<TestTensor>& t = layout.tensors;
  for (int d = 0; d < dp; ++d)
    for (int i = 0; i < tp; ++i) {
      std::vector<Kept>& list = layout.ranks.emplace_back();
      const std::vector<std::vector<Box>> boxes = {
          slice_boxes(t[0].shape, 0, i, tp, false), slice_boxes(t[1].shape, 1, i, tp, false),
          slice_boxes(t[2].shape, 1, i, tp, true), slice_boxes(t[3].shape, 1, i, tp, true),
          slice_boxes(t[4].shape, 2, i, tp, false)};
      const int64_t total = numel_of(boxes), whole = t[5].shape.numel();
      // Copies: every dp rank keeps everything and is a cover with its tp ranks.
      if (copies)
        add_range(boxes, 0, total, d, list);
      else
        add_range(boxes, total * d / dp, total * (d + 1) / dp, 0, list);
      // The last tensor is kept by every tp rank, cut over dp: a cover per tp rank.
      list.push_back({5, i, {Box::whole(t[5].shape)}, whole * d / dp, whole * (d + 1) / dp});
    }
  return layout;
}

// Two covers that cut the same tensor in different ways.
inline Layout two_covers() {
  Layout layout = cut_at("two_covers", {"x", {4, 9, 6}, 4}, {0, 30, 101, 216});
  Layout other = cut_at("", layout.tensors[0], {0, 120, 121, 130, 190, 216});
  for (std::vector<Kept>& list : other.ranks) {
    for (Kept& kept : list) kept.cover = 7;
    layout.ranks.push_back(list);
  }
  layout.ranks[0].push_back(layout.ranks[3][0]);  // rank 0 takes part in both
  layout.ranks[3].clear();
  return layout;
}

// Rank 0 owns two matrices that it shares with a rank that is busy with one of its own, and then
// works on one that it alone keeps, in two places: the buffer of the first is not free yet.
inline Layout late_partner() {
  Layout layout{
      "late_partner", {{"a", {8, 6}}, {"b", {8, 6}}, {"c", {6, 8}}, {"busy", {100, 100}}}, {}};
  const auto boxes = whole_boxes(layout.tensors);
  const auto kept = [&](int64_t t, int64_t begin, int64_t end) {
    return Kept{t, 0, boxes[size_t(t)], begin, end};
  };
  layout.ranks = {{kept(2, 20, 48), kept(0, 0, 40), kept(1, 8, 48), kept(2, 0, 20)},
                  {kept(0, 40, 48), kept(1, 0, 8), kept(3, 0, 10000)}};
  return layout;
}

inline std::vector<Layout> all_layouts() {
  std::vector<Layout> list;
  for (const int n : {1, 2, 3, 5, 8}) {
    list.push_back(contiguous(fmt::format("contiguous_{}", n), small_model(), n));
    list.push_back(bucketed(fmt::format("bucketed_{}", n), small_model(), n, 400));
  }
  list.push_back(cut_at("k1_of_3", {"x", {12, 10}}, {0, 0, 120, 120}));
  list.push_back(cut_at("k2_of_2", {"x", {12, 10}}, {0, 47, 120}));
  list.push_back(cut_at("k3_of_3", {"x", {10, 12}}, {0, 1, 119, 120}));
  list.push_back(cut_at("k5_of_5", {"x", {12, 10}}, {0, 24, 48, 72, 96, 120}));
  list.push_back(cut_at("k5_of_7", {"x", {10, 31}}, {0, 0, 17, 33, 200, 200, 301, 310}));
  list.push_back(cut_at("experts_5", {"x", {6, 8, 7}, 6}, {0, 75, 100, 230, 240, 336}));
  list.push_back(tensor_parallel(2, 1, false));
  list.push_back(tensor_parallel(3, 2, false));
  list.push_back(tensor_parallel(2, 3, false));
  list.push_back(tensor_parallel(2, 2, true));
  list.push_back(two_covers());
  list.push_back(late_partner());
  return list;
}

// Elements of every rank in every (tensor, cover, matrix), counted one by one.
using Shares = std::map<std::tuple<int64_t, int, int64_t>, std::map<int, int64_t>>;
inline Shares shares_of(const Layout& layout) {
  Shares shares;
  for (int rank = 0; rank < layout.num_ranks(); ++rank)
    for (const Kept& kept : layout.ranks[size_t(rank)]) {
      const TestTensor& t = layout.tensors[size_t(kept.tensor)];
      if (!t.muon) continue;
      const int64_t numel = t.shape.numel() / t.num_matrices;
      for (const int64_t index : indices_of(t.shape, kept))
        ++shares[{layout.muon_number(kept.tensor), kept.cover, index / numel}][rank];
    }
  return shares;
}

using Key = std::tuple<int64_t, int, int64_t>;
inline Key key_of(const MuonMatrix& m) {
  return {m.tensor, m.cover, m.index};
}

inline constexpr MuonMode kModes[] = {MuonMode::kAuto, MuonMode::kReplicate, MuonMode::kOwner};

}  // namespace ashlar::parallel::testing_support
