// How it works.  placed() walks the boxes of a parameter and cuts each at the borders of the
// requested range.  The result is boxes with a position in the parameter's memory, each contiguous
// there.  pieces_of stops here.  pieces_to_write first finds the range of each tensor
// (written_ranges) and then joins boxes, dim by dim, the last dim first: boxes that differ only in
// the range of this dim are sorted by it, and a box that begins where the one before ends, in the
// tensor and by its stride in memory, becomes part of it.  So half of each expert's rows become one
// box of all experts.
#include "ashlar/tensor/pieces.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ashlar/tensor/cuts.h"

namespace ashlar {
namespace {

// A box of a kept tensor.
struct Range {
  int64_t begin, end;
};

struct Placed {
  Box box;
  int64_t at;     // its first element in memory
  Shape strides;  // any value for a dim of length 1
};

Shape row_major(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::vector<Placed> placed(const Parameter& p, Range range) {
  const int64_t begin = p.begin + range.begin, end = p.begin + range.end;
  ASHLAR_ASSERT(0 <= range.begin && range.end <= p.end - p.begin);
  std::vector<Placed> list;
  int64_t box_begin = 0;
  for (const Box& box : p.boxes) {
    const int64_t box_end = box_begin + box.length.numel();
    int64_t at = std::max(begin, box_begin);
    if (const int64_t to = std::min(end, box_end); at < to)
      for (const Box& part : boxes_of_range(box, at - box_begin, to - box_begin)) {
        list.push_back({part, at - p.begin, row_major(part.length)});
        at += part.length.numel();
      }
    box_begin = box_end;
  }
  ASHLAR_ASSERT(p.end <= box_begin);
  return list;
}

// Joins `next` to `box` if it continues it along `dim`; returns whether it did.
bool join(int dim, Placed& box, const Placed& next) {
  for (int d = 0; d < box.box.length.ndim(); ++d) {
    const int64_t length = box.box.length[d];
    if (d == dim) continue;
    if (box.box.offset[d] != next.box.offset[d] || length != next.box.length[d]) return false;
    if (length > 1 && box.strides[d] != next.strides[d]) return false;
  }
  int64_t& length = box.box.length[dim];
  const int64_t more = next.box.length[dim], distance = next.at - box.at;
  if (box.box.offset[dim] + length != next.box.offset[dim] || distance <= 0) return false;
  const int64_t stride = length > 1 ? box.strides[dim] : distance;
  if (distance != length * stride || (more > 1 && next.strides[dim] != stride)) return false;
  box.strides[dim] = stride;
  length += more;
  return true;
}

// Orders boxes so that those that differ only in the range of `dim` are neighbours.
void sort_along(int dim, std::vector<Placed>& boxes) {
  std::sort(boxes.begin(), boxes.end(), [dim](const Placed& a, const Placed& b) {
    for (int d = 0; d < a.box.offset.ndim(); ++d) {
      if (d == dim) continue;
      const auto x = std::pair(a.box.offset[d], a.box.length[d]),
                 y = std::pair(b.box.offset[d], b.box.length[d]);
      if (x != y) return x < y;
    }
    return a.box.offset[dim] < b.box.offset[dim];
  });
}

void join_neighbours(std::vector<Placed>& boxes) {
  if (boxes.size() < 2) return;
  for (int dim = boxes[0].box.offset.ndim() - 1; dim >= 0; --dim) {
    sort_along(dim, boxes);
    size_t num = 1;
    for (size_t i = 1; i < boxes.size(); ++i)
      if (!join(dim, boxes[num - 1], boxes[i])) boxes[num++] = boxes[i];
    boxes.resize(num);
  }
  std::sort(boxes.begin(), boxes.end(),
            [](const Placed& a, const Placed& b) { return a.at < b.at; });
}

bool has_gaps(const Placed& placed) {
  const Shape& length = placed.box.length;
  const Shape without = row_major(length);
  for (int d = 0; d < length.ndim(); ++d)
    if (length[d] > 1 && placed.strides[d] != without[d]) return true;
  return false;
}

void append(const KeptTensor& kept, const std::vector<Placed>& boxes, std::vector<Piece>& pieces) {
  const Tensor elements = kept.data.view({kept.data.numel()});
  for (const Placed& placed : boxes) {
    Tensor data = elements.slice(placed.at, elements.numel());
    data.shape = placed.box.length;
    pieces.push_back({kept.named, placed.box, data, has_gaps(placed) ? placed.strides : Shape{}});
  }
}

int64_t numel_of(const KeptTensor& kept) {
  const int64_t numel = kept.parameter->end - kept.parameter->begin;
  ASHLAR_ASSERT(kept.data.numel() == numel);
  return numel;
}

// This rank's part of the row that these tensors form.
void cut_among_copies(std::span<const KeptTensor> kept, const std::vector<size_t>& row,
                      std::vector<Range>& ranges) {
  const Parameter& first = *kept[row[0]].parameter;
  std::vector<Stretch> stretches;
  int64_t end = 0, bytes = 0;
  for (const size_t i : row) {
    const Parameter& p = *kept[i].parameter;
    ASHLAR_ASSERT(p.copy == first.copy);
    const int64_t numel = numel_of(kept[i]), width = size_of(kept[i].data.dtype);
    stretches.push_back({end, end + numel, p.local_shape, p.begin, width});
    end += numel;
    bytes += numel * width;
  }
  const int64_t num_parts = std::clamp<int64_t>(bytes / kMinPartBytes, 1, first.num_copies);
  Range mine{end, end};
  if (first.copy < num_parts) {
    const std::vector<int64_t> cuts = even_cuts(stretches, end, num_parts, 1);
    mine = {cuts[size_t(first.copy)], cuts[size_t(first.copy) + 1]};
  }
  for (size_t i = 0; i < row.size(); ++i) {
    const Stretch& s = stretches[i];
    ranges[row[i]] = {std::clamp(mine.begin, s.begin, s.end) - s.begin,
                      std::clamp(mine.end, s.begin, s.end) - s.begin};
  }
}

// The range of each tensor that this rank writes.
std::vector<Range> written_ranges(std::span<const KeptTensor> kept) {
  std::vector<Range> ranges;
  std::map<std::pair<int, int>, std::vector<size_t>> rows;  // by the ranks that keep them
  for (size_t i = 0; i < kept.size(); ++i) {
    const Parameter& p = *kept[i].parameter;
    ranges.push_back({0, numel_of(kept[i])});
    if (p.num_copies > 1) rows[{p.keepers, p.num_copies}].push_back(i);
  }
  for (const auto& [keepers, row] : rows) cut_among_copies(kept, row, ranges);
  return ranges;
}

}  // namespace

std::vector<Piece> pieces_of(const KeptTensor& kept) {
  return pieces_of(std::span(&kept, 1));
}

std::vector<Piece> pieces_of(std::span<const KeptTensor> kept) {
  std::vector<Piece> pieces;
  for (const KeptTensor& k : kept) append(k, placed(*k.parameter, {0, numel_of(k)}), pieces);
  return pieces;
}

std::vector<Piece> pieces_to_write(std::span<const KeptTensor> kept) {
  const std::vector<Range> ranges = written_ranges(kept);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (ranges[i].begin == ranges[i].end) continue;
    std::vector<Placed> boxes = placed(*kept[i].parameter, ranges[i]);
    join_neighbours(boxes);
    append(kept[i], boxes, pieces);
  }
  return pieces;
}

}  // namespace ashlar
