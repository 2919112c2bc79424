// Launches of kernels/gpu: attention and the gate of its output.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// attention.h.  A pass goes over lines of one side, queries or keys, in tiles: up to
// attention_tile_rows lines of one segment and what they meet on the other side, segments
// [first, end), of which only positions [low, high) can be visible.  Forward fills rows of out and
// lse from out_row on.
struct AttentionSegment {
  int32_t row, length, position;
};
struct AttentionTile {
  int32_t row, length, position, first, end, low, high, out_row;
};
struct AttentionCall {
  const AttentionTile* tiles;
  const AttentionSegment* segments;  // of the other side
  Elements q, k, v;                  // all F32 or all BF16
  float* lse;
  int32_t num_tiles, num_heads, num_kv_heads, head_size, value_size;
  int32_t window;  // INT32_MAX: none
  float scale;
  bool by_vectors;
};
enum class AttentionPass { kForward, kBackward };
int attention_tile_rows(AttentionPass pass, ElementType type, int head_size, int value_size);

// Tiles of queries; fills out, of the type of v or F32, and lse.
struct AttentionForward {
  AttentionCall call;
  Elements out;
};
std::string launch(const AttentionForward&);

// attention.h: the merge of `parts` results, outs [parts, rows, width] and lses [parts, rows].
struct AttentionJoin {
  const float *outs, *lses;
  Elements out;
  float* lse;
  int64_t parts, rows, width;
};
std::string launch(const AttentionJoin&);

// dots [rows] = the products of out and dout, rows of `width`.
struct AttentionDots {
  Elements out, dout;
  float* dots;
  int64_t rows, width;
};
std::string launch(const AttentionDots&);

// Fills one gradient: that of queries with tiles of queries, that of keys or values with tiles of
// keys.
enum class AttentionOperand { kQueries, kKeys, kValues };
struct AttentionBackward {
  AttentionCall call;
  Elements dout;
  const float* dots;
  AttentionOperand of;
  float* gradient;
};
std::string launch(const AttentionBackward&);

// output_gate.h: rows of the gate lie gate_stride elements apart.  y may be att.
struct OutputGateForward {
  Elements att, gate, y;
  int64_t rows, width, gate_stride;
  bool by_vectors;
};
std::string launch(const OutputGateForward&);

// datt may be dy.
struct OutputGateBackward {
  Elements dy, att, gate, datt, dgate;
  int64_t rows, width, gate_stride, dgate_stride;
  bool by_vectors;
};
std::string launch(const OutputGateBackward&);

}  // namespace ashlar::device
