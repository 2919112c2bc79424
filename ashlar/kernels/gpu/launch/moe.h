// Launches of kernels/gpu: experts and the rows that they get.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// moe.h: rows from row_of_expert[num_experts] on are left alone; null: none are.
struct SwigluForward {
  const int32_t* row_of_expert;
  int64_t num_experts;
  Elements gate_up, act;
  int64_t rows, width;  // of act
  bool by_vectors;
};
std::string launch(const SwigluForward&);

struct SwigluBackward {
  const int32_t* row_of_expert;
  int64_t num_experts;
  Elements dact, gate_up, dgate_up;
  int64_t rows, width;  // of dact
  bool by_vectors;
};
std::string launch(const SwigluBackward&);

// Choices are counted by class, in parts of a row of choices.
inline constexpr int kChoicesOfPart = 1024;
inline int64_t num_choice_counts(int64_t rows, int64_t choices, int64_t classes) {
  return rows * ((choices + kChoicesOfPart - 1) / kChoicesOfPart) * classes;
}

// moe.h: the plan of choices [choices], k of a token.  counts: room for num_choice_counts of one
// row and num_experts + 1 classes.
struct RoutePlan {
  const int32_t* expert;
  int64_t choices, k, num_experts;
  int32_t* counts;
  int32_t *row_of_expert, *token_of_row, *row_of_token;
  int64_t* count;
  int num_kernels() const { return choices > 0 ? 3 : 2; }
};
std::string launch(const RoutePlan&);

// topk.h: loads [rows, classes] of choices [rows, choices].  counts: room for num_choice_counts.
struct RowLoads {
  const int32_t* expert;
  int64_t rows, choices, classes;
  int32_t* counts;
  float* loads;
  int num_kernels() const { return 2; }
};
std::string launch(const RowLoads&);

// moe.h: copies rows of tokens to those rows that experts have, byte by byte.
struct GatherRows {
  const int32_t *token_of_row, *row_of_expert;
  int64_t num_experts;
  const void* from;
  void* to;
  int64_t rows, row_bytes;
};
std::string launch(const GatherRows&);

// moe.h: what the passes below have; rows of tokens and of experts have `width` elements.
struct Choices {
  const int32_t* row_of_token;  // [tokens, k]; -1: none
  const float* weight;          // likewise
  int64_t tokens, k, width;
  bool identity, by_vectors;
};
struct CombineForward {
  Choices choices;
  Elements y_rows, m, e;
};
std::string launch(const CombineForward&);

struct CombineBackward {
  Choices choices;
  Elements de, y_rows, m, dy_rows;
  float* dweight;
};
std::string launch(const CombineBackward&);

struct ScatterRowsAdd {
  Choices choices;
  Elements shared, dx_rows, de, dm;  // shared may be absent
};
std::string launch(const ScatterRowsAdd&);

// moe.h; z null: no gate.
struct SharedAddForward {
  const float* z;
  Elements s, e;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const SharedAddForward&);

struct SharedAddBackward {
  const float* z;
  Elements de, s, ds;
  float* dz;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const SharedAddBackward&);

}  // namespace ashlar::device
