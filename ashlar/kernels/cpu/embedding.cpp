#include <algorithm>

#include "ashlar/kernels/cpu/embedding_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

void check_ids(const Tensor& ids_T, int64_t vocab_size) {
  for (const int32_t id : ids_T.span<const int32_t>()) ASHLAR_ASSERT(id >= 0 && id < vocab_size);
}

// The rows sorted by id, but for those of one id, rows of one id in token order: rows of id v are
// row[first_of_id[v] .. first_of_id[v + 1]).  A counting sort.
struct RowsById {
  Tensor first_of_id_V1, row_T;
  RowsById(Arena& workspace, int64_t num_tokens, int64_t vocab_size)
      : first_of_id_V1(workspace.take(DType::kI32, {vocab_size + 1})),
        row_T(workspace.take(DType::kI32, {num_tokens})) {}
  void sort(std::span<const int32_t> ids, int32_t without) const {
    const auto first = first_of_id_V1.span<int32_t>();
    int32_t* row = row_T.as<int32_t>();
    std::fill(first.begin(), first.end(), 0);
    for (const int32_t id : ids)
      if (id != without) ++first[size_t(id)];
    int32_t sum = 0;
    for (int32_t& f : first) sum += f, f = sum;  // the end of each id's rows
    for (size_t t = ids.size(); t-- > 0;)
      if (ids[t] != without) row[--first[size_t(ids[t])]] = int32_t(t);
  }
};

template <typename T>
void embedding_rows(const EmbeddingArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, from = x.ids[size_t(t)] * x.H; i < x.H; ++i)
      x.x.set(t * x.H + i, x.scale ? (x.emb[from + i] + x.bias[i]) * x.scale[i] : x.emb[from + i]);
}

template <typename T>
void affine_gradient(const EmbeddingGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, from = x.ids[size_t(t)] * x.H; i < x.H; ++i) {
      partial[i] += x.dx[t * x.H + i] * (x.emb[from + i] + x.bias[i]);
      partial[x.H + i] += x.dx[t * x.H + i] * x.scale[i];
    }
}

template <typename T>
void table_gradient(const EmbeddingGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t id = begin; id < end; ++id)
    for (int32_t k = x.first_of_id[id]; k < x.first_of_id[id + 1]; ++k)
      for (int64_t i = 0; i < x.H; ++i) {
        const T dx = x.dx[x.row[k] * x.H + i];
        x.demb.add(id * x.H + i, x.scale ? dx * x.scale[i] : dx);
      }
}

}  // namespace

void embedding_forward(const Context& ctx, const EmbeddingForward& x) {
  if (ctx.meta()) return;
  check_ids(x.ids_T, x.emb_VH.shape[0]);
  with_real(x.emb_VH.dtype, [&]<typename Real>(Real) {
    const EmbeddingArgs<Real> args{.H = x.emb_VH.shape[1],
                                   .ids = ints(x.ids_T),
                                   .emb = x.emb_VH,
                                   .scale = x.scale_H,
                                   .bias = x.bias_H,
                                   .x = x.x_TH};
    run_rows(ctx, x.ids_T.numel(), args, embedding_rows_fast, embedding_rows<Real>);
  });
}

void embedding_backward(const Context& ctx, const EmbeddingBackward& x) {
  const int64_t T = x.ids_T.numel(), V = x.emb_VH.shape[0];
  const Arena::Scope scope(*ctx.workspace);
  const RowsById rows(*ctx.workspace, T, V);
  if (!ctx.meta()) {
    check_ids(x.ids_T, V);
    rows.sort(x.ids_T.span<const int32_t>(), x.fixed_id);
  }
  with_real(x.emb_VH.dtype, [&]<typename Real>(Real) {
    const EmbeddingGradientArgs<Real> args{.H = x.emb_VH.shape[1],
                                           .ids = ints(x.ids_T),
                                           .emb = x.emb_VH,
                                           .scale = x.scale_H,
                                           .bias = x.bias_H,
                                           .dx = x.dx_TH,
                                           .demb = x.demb_VH,
                                           .first_of_id = ints(rows.first_of_id_V1),
                                           .row = ints(rows.row_T)};
    if (x.scale_H)
      run_summing_rows(ctx, T, {x.dscale_H, x.dbias_H}, args, embedding_affine_gradient_fast,
                       affine_gradient<Real>);
    run_rows(ctx, V, args, embedding_table_gradient_fast, table_gradient<Real>);  // tasks of 64 ids
  });
}

}  // namespace ashlar::kernels::cpu
