// Launches of kernels/gpu: embedding and cross entropy.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// embedding.h: x = emb[ids], with scale and bias (emb[ids] + bias) scale.  ids are within emb.
struct EmbeddingForward {
  const int32_t* ids;
  const float *emb, *scale, *bias;
  Elements x;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const EmbeddingForward&);

// The rows in the order of their ids, those of one id in their own order.
struct SortIds {
  const int32_t* ids;
  int32_t *sorted_ids, *sorted_rows;
  int64_t rows;
};
std::string launch(const SortIds&);

// embedding.h: demb += dx scale by id, except for fixed_id.
struct EmbeddingTableGradient {
  const int32_t *sorted_ids, *sorted_rows;
  const float* scale;
  Elements dx;
  float* demb;
  int64_t rows, width;
  int32_t fixed_id;
  bool by_vectors;
};
std::string launch(const EmbeddingTableGradient&);

// embedding.h: the partials [2, ceil(rows / kPartialRows), width] of dscale and dbias.
struct EmbeddingAffineGradient {
  const int32_t* ids;
  const float *emb, *scale, *bias;
  Elements dx;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const EmbeddingAffineGradient&);

// cross_entropy.h: targets are within the classes, or -1.  dlogits: absent, or logits itself.
struct CrossEntropy {
  const float* logits;
  const int32_t* targets;
  float scale;
  float* loss;
  Elements dlogits;
  int64_t rows, classes;
  bool by_vectors;
};
std::string launch(const CrossEntropy&);

}  // namespace ashlar::device
