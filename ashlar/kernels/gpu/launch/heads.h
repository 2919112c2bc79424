// Launches of kernels/gpu: columns that become heads.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// rope.h: what both passes over heads have.  Rows of qkv have row_width elements.  positions
// [tokens] are rows of the table; both are null without rotation, as q_norm and k_norm are without
// norms.
struct Heads {
  int64_t num_tokens, num_queries, num_keys, head_dim, rotary_dim, row_width;
  const int32_t* positions;
  const float* table;
  Elements qkv;
  const float *q_norm, *k_norm;
  float weight_offset;
};
inline constexpr int64_t kMaxHeadWidth = 256;

struct HeadsForward {
  Heads heads;
  float eps;
  Elements qhat, khat, v;
  float *rstd_q, *rstd_k;
};
std::string launch(const HeadsForward&);

// With norms also the partials of dq_norm and dk_norm,
// [2, ceil(num_tokens / kTokensOfHeadPartial), head_dim].
inline constexpr int kTokensOfHeadPartial = 16;
struct HeadsBackward {
  Heads heads;
  const float *rstd_q, *rstd_k;
  Elements dqhat, dkhat, dv, dqkv;
  float* partials;
};
std::string launch(const HeadsBackward&);

// Where the token before a token lies, its link: in the row before; nowhere, because a document
// starts; or, from 0 on, in halo link / 2, with an odd link if the document has yet another token
// before that one.
inline constexpr int32_t kRowBefore = -1, kNothingBefore = -2;

// conv.h: what both passes have.  Rows of z have `channels` elements, z_stride elements apart.
struct ConvColumns {
  const int32_t* links;  // [rows]
  Elements z;
  const float *halo, *w0, *b0;
  int64_t rows, channels, z_stride;
  bool by_vectors;
};
struct ConvColumnsForward {
  ConvColumns conv;
  Elements columns;
};
std::string launch(const ConvColumnsForward&);

// conv.h: adds to dz, fills dhalo and the partials [ceil(rows / kPartialRows), ..] of dw0 and db0.
struct ConvColumnsBackward {
  ConvColumns conv;
  Elements dcolumns, dz;
  int64_t dz_stride;
  float *dhalo, *dw0_partials, *db0_partials;
};
std::string launch(const ConvColumnsBackward&);

// qk.h: what both passes have.  q_sum null: the sums over a key's queries are those of its local
// ones.  positions are null without rotation.
struct Qk {
  int64_t num_tokens, num_queries, num_keys, head_dim, rotary_dim, num_delayed;
  const int32_t *positions, *links;
  const float* table;
  Elements qkv, y;
  const float *b1, *tau, *q_sum;
  float query_share;  // of a query in the mean of its key's queries
};
struct QkForward {
  Qk qk;
  float eps;
  const float* halo_vd;
  Elements qhat, khat, v;
  float *n_q, *n_k;
};
std::string launch(const QkForward&);

// Fills the partials [ceil(num_tokens / kPartialRows), ..] of dtau and db1 too.  Queries and key of
// a key head have at most kMaxGroupWidth elements.
inline constexpr int64_t kMaxGroupWidth = (12 << 10) - 1;
struct QkBackward {
  Qk qk;
  const float *n_q, *n_k, *dqhat, *dkhat, *dv, *dq_sum;
  Elements dy, dqkv;
  float *dhalo_vd, *dtau_partials, *db1_partials;
};
std::string launch(const QkBackward&);

}  // namespace ashlar::device
