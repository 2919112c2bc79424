// The rows of embedding.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

// A plain embedding has no scale and bias.
template <typename T>
struct EmbeddingArgs {
  int64_t H;
  const int32_t* ids;
  Cells<T> emb, scale, bias, x;
};
void embedding_rows_fast(const EmbeddingArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct EmbeddingGradientArgs {
  int64_t H;
  const int32_t* ids;
  Cells<T> emb, scale, bias, dx, demb;
  const int32_t *first_of_id, *row;  // rows of id v: row[first_of_id[v] .. first_of_id[v + 1])
};
// partial: dscale [H], dbias [H].
void embedding_affine_gradient_fast(const EmbeddingGradientArgs<float>& args, int64_t begin,
                                    int64_t end, float* partial);
// Adds to the rows of ids [begin, end).
void embedding_table_gradient_fast(const EmbeddingGradientArgs<float>& args, int64_t begin,
                                   int64_t end);

}  // namespace ashlar::kernels::cpu
