// How it works.  Queries and keys come as lists of segments, in any number and order, but loops run
// over blocks of rows.  KeyLinks chains the key segments of each document in the order of their
// list:
//
//   queries   [ document 7 ][ document 9 ]        first:  segment 0 -> keys 1,  segment 1 -> keys 0
//   keys      [ 9 ][ 7 ][ 9 ][ 7 ]                next:   0 -> 2,  1 -> 3
//
// In pass p a row reads the p-th segment of its chain, of which it sees one range of rows
// (visible_rows).  BlockRanges has these ranges for the 64 rows of a query block; mask_for cuts
// them to one block of keys.  Ranges of different passes are disjoint, so the passes of a row add
// up.
#include "ashlar/kernels/cpu/attention/blocks.h"

#include <climits>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/isa.h"

namespace ashlar::kernels::cpu {

KeyLinks::KeyLinks(const AttentionArgs& call) {
  // Sized by rows, so that a dry run with other documents counts the same.
  const Tensor first = call.ctx.workspace->take(DType::kI32, {call.queries.num_tokens()});
  const Tensor next = call.ctx.workspace->take(DType::kI32, {num_key_rows(call)});
  if (call.ctx.meta()) return;
  first_ = first.as<int32_t>();
  next_ = next.as<int32_t>();
  const auto& queries = call.queries.segments();
  const auto num_keys = int64_t(call.keys.size());
  const auto find = [&](int64_t from, int64_t document) {
    while (from < num_keys && call.keys[from].document != document) ++from;
    return from < num_keys ? int32_t(from) : -1;
  };
  for (size_t i = 0; i < queries.size(); ++i) first_[i] = find(0, queries[i].document);
  for (int64_t i = 0; i < num_keys; ++i) next_[i] = find(i + 1, call.keys[i].document);
}

bool BlockRanges::fill(const AttentionArgs& call, const KeyLinks& links, int64_t pass,
                       int64_t block) {
  const int64_t first_row = block * kBlock;
  rows = std::min(kBlock, call.queries.num_tokens() - first_row);
  lowest = INT_MAX;
  highest = 0;
  int32_t segment = -1, key = -1;  // of the row before, which mostly apply to the next row too
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = first_row + r;
    begin[r] = end[r] = 0;
    if (call.queries.segment_T()[row] != segment) {
      segment = call.queries.segment_T()[row];
      key = links.first(segment);
      for (int64_t p = 0; p < pass && key >= 0; ++p) key = links.next(key);
    }
    if (key < 0) continue;
    any = true;
    const auto [low, high] =
        visible_rows(call.keys[key], call.queries.position_T()[row], call.shape.window);
    if (low >= high) continue;
    begin[r] = int32_t(low);
    end[r] = int32_t(high);
    lowest = std::min(lowest, begin[r]);
    highest = std::max(highest, end[r]);
  }
  return any;
}

bool BlockRanges::mask_for(int64_t key_block, int64_t row_begin, int64_t row_end,
                           BlockMask& mask) const {
  const auto origin = int32_t(key_block * kBlock);
  bool any = false;
  for (int64_t group = 0; group * kRowGroup < rows; ++group) {
    int32_t columns = 0;
    for (int64_t r = group * kRowGroup; r < std::min(rows, (group + 1) * kRowGroup); ++r) {
      const bool ours = r >= row_begin && r < row_end;
      mask.begin[r] = ours ? std::clamp(begin[r] - origin, 0, int32_t(kBlock)) : 0;
      mask.end[r] = ours ? std::clamp(end[r] - origin, 0, int32_t(kBlock)) : 0;
      if (mask.begin[r] < mask.end[r]) columns = std::max(columns, mask.end[r]);
    }
    mask.columns[group] = (columns + 15) / 16 * 16;  // whole vectors on every instruction set
    any = any || columns > 0;
  }
  return any;
}

void pack_block(const gemm::Engine& e, const gemm::Source& source, int64_t num_k,
                int64_t num_columns, bool transposed, std::byte* packed) {
  for (int64_t c = 0; c < num_columns; c += e.width, packed += e.panel_bytes(num_k)) {
    const int64_t columns = std::min(e.width, num_columns - c);
    if (transposed)
      e.pack_panel_transposed(source.at(c, 0), num_k, columns, e.round, packed);
    else
      e.pack_panel(source.at(0, c), num_k, columns, e.round, packed);
  }
}

namespace {

// The rows of a tile where `rows` are cut into equal tiles, as few as there can be.
int64_t tile_rows(const gemm::Engine& e, int64_t rows) {
  const int64_t tiles = ceil_div(rows, e.max_rows);
  return ceil_div(rows, tiles);
}

}  // namespace

void multiply(const gemm::Engine& e, int64_t rows, int64_t columns, int64_t k, const gemm::Left& a,
              const Packed& b, float* c, int64_t c_stride, bool accumulate) {
  const int64_t step = tile_rows(e, rows), padded_k = e.padded(k);
  const std::byte* panel = b.data;
  for (int64_t column = 0; column < columns; column += e.width, panel += e.panel_bytes(b.num_k)) {
    for (int64_t r = 0; r < rows; r += step)
      e.tile(std::min(step, rows - r), padded_k,
             {a.data + r * a.row_bytes, a.row_bytes, a.step_bytes}, panel,
             c + r * c_stride + column, c_stride, accumulate);
  }
}

void multiply_transposed(const gemm::Engine& e, int64_t rows, int64_t columns, int64_t k,
                         const Packed& a, const Packed& b, float* c, int64_t c_stride) {
  const int64_t group_bytes = e.unit * size_of(e.element);
  const std::byte* panel = a.data;
  for (int64_t r = 0; r < rows; r += e.width, panel += e.panel_bytes(a.num_k))
    multiply(e, std::min(e.width, rows - r), columns, k,
             {panel, group_bytes, e.width * group_bytes}, b, c + r * c_stride, c_stride, true);
}

gemm::Left left_rows(const gemm::Engine& e, const gemm::Source& source, int64_t rows, int64_t num_k,
                     std::byte* scratch) {
  const int64_t size = size_of(e.element);
  if (source.dtype == e.element && !e.round && e.padded(num_k) == num_k)
    return {source.data, source.stride * size, e.unit * size};
  const int64_t row_bytes = e.padded(num_k) * size;
  e.pack_rows(source, rows, num_k, e.round, scratch, row_bytes);
  return {scratch, row_bytes, e.unit * size};
}

const gemm::Engine* attention_engine(const AttentionArgs& call) {
  const DType dtype = call.q.dtype;
  if (call.ctx.reference || dtype == DType::kF64) return nullptr;
  // On AMX too, where tiles leave it the decoding of few tokens.
  return dtype == DType::kBF16 && isa() >= Isa::kAvx512Bf16 ? &gemm::bf16_engine()
                                                            : &gemm::f32_engine(false);
}

bool attention_has_tiles(const AttentionArgs& call) {
  return call.q.dtype == DType::kBF16 && !call.ctx.reference && isa() == Isa::kAmx;
}

}  // namespace ashlar::kernels::cpu
