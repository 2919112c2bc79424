#include "ashlar/kernels/embedding.h"

#include <algorithm>

#include "ashlar/kernels/cpu/embedding_args.h"

namespace ashlar::kernels {
namespace {

void check(const Tensor& ids_T, const Tensor& emb_VH, const Tensor& scale_H, const Tensor& bias_H,
           const Tensor& x_TH) {
  ASHLAR_ASSERT(ids_T.dtype == DType::kI32 && emb_VH.shape.ndim() == 2);
  const int64_t H = emb_VH.shape[1];
  ASHLAR_ASSERT((x_TH.shape == Shape{ids_T.numel(), H}) && is_real(x_TH.dtype));
  ASHLAR_ASSERT(scale_H.shape == Shape{H} && bias_H.shape == Shape{H});
  ASHLAR_ASSERT(emb_VH.dtype == DType::kF32 || emb_VH.dtype == DType::kF64);
  ASHLAR_ASSERT(scale_H.dtype == emb_VH.dtype && bias_H.dtype == emb_VH.dtype);
}

void check_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (size_t t = 0; t < ids.size(); ++t)
    ASHLAR_REQUIRE(
        ids[t] >= 0 && ids[t] < vocab_size, kData,
        "token id {} at row {} of the batch is outside [0, {}); the data was prepared with "
        "another tokenizer or vocabulary size than the model's",
        ids[t], t, vocab_size);
}

// The rows sorted by id, rows of one id in token order: rows of id v are
// row[first_of_id[v] .. first_of_id[v + 1]).  A counting sort.
struct RowsById {
  Tensor first_of_id_V1, row_T;
  RowsById(Arena& workspace, int64_t num_tokens, int64_t vocab_size)
      : first_of_id_V1(workspace.take(DType::kI32, {vocab_size + 1})),
        row_T(workspace.take(DType::kI32, {num_tokens})) {}
  void sort(std::span<const int32_t> ids) const {
    const auto first = first_of_id_V1.span<int32_t>();
    int32_t* row = row_T.as<int32_t>();
    std::fill(first.begin(), first.end(), 0);
    for (const int32_t id : ids) ++first[size_t(id)];
    int32_t sum = 0;
    for (int32_t& f : first) sum += f, f = sum;  // the end of each id's rows
    for (size_t t = ids.size(); t-- > 0;) row[--first[size_t(ids[t])]] = int32_t(t);
  }
};

template <typename T>
void embedding_rows(const EmbeddingArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, from = x.ids[size_t(t)] * x.H; i < x.H; ++i)
      x.x.set(t * x.H + i, (x.emb[from + i] + x.bias[i]) * x.scale[i]);
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
      for (int64_t i = 0; i < x.H; ++i)
        x.demb.add(id * x.H + i, x.dx[x.row[k] * x.H + i] * x.scale[i]);
}

}  // namespace

void embedding_forward(const Context& ctx, const Tensor& ids_T, const Tensor& emb_VH,
                       const Tensor& scale_H, const Tensor& bias_H, const Tensor& x_TH) {
  check(ids_T, emb_VH, scale_H, bias_H, x_TH);
  const int64_t T = ids_T.numel(), V = emb_VH.shape[0], H = emb_VH.shape[1];
  ctx.record("embedding_forward", x_TH.shape, {2 * T * H, 2 * x_TH.bytes() + ids_T.bytes()});
  if (ctx.meta()) return;
  const auto ids = ids_T.span<const int32_t>();
  check_ids(ids, V);
  with_real(emb_VH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const EmbeddingArgs<Real> args{H, ids, C(emb_VH), C(scale_H), C(bias_H), C(x_TH)};
    run_rows(ctx, T, args, embedding_rows_fast, embedding_rows<Real>);
  });
}

void embedding_backward(const Context& ctx, const Tensor& ids_T, const Tensor& emb_VH,
                        const Tensor& scale_H, const Tensor& bias_H, const Tensor& dx_TH,
                        const Tensor& demb_VH, const Tensor& dscale_H, const Tensor& dbias_H) {
  check(ids_T, emb_VH, scale_H, bias_H, dx_TH);
  check(ids_T, demb_VH, dscale_H, dbias_H, dx_TH);
  const int64_t T = ids_T.numel(), V = emb_VH.shape[0], H = emb_VH.shape[1];
  ASHLAR_ASSERT(demb_VH.shape == emb_VH.shape && demb_VH.dtype == emb_VH.dtype);
  ctx.record("embedding_backward", dx_TH.shape, {6 * T * H, 5 * dx_TH.bytes() + ids_T.bytes()});
  const Arena::Scope scope(*ctx.workspace);
  const RowsById rows(*ctx.workspace, T, V);
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, {dscale_H, dbias_H});
  const auto ids = ids_T.span<const int32_t>();
  check_ids(ids, V);
  rows.sort(ids);
  with_real(emb_VH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const EmbeddingGradientArgs<Real> args{H,
                                           ids,
                                           C(emb_VH),
                                           C(scale_H),
                                           C(bias_H),
                                           C(dx_TH),
                                           C(demb_VH),
                                           rows.first_of_id_V1.as<int32_t>(),
                                           rows.row_T.as<int32_t>()};
    run_summing_rows(ctx, T, {dscale_H, dbias_H}, args, embedding_affine_gradient_fast,
                     affine_gradient<Real>);
    run_rows(ctx, V, args, embedding_table_gradient_fast, table_gradient<Real>);  // tasks of 64 ids
  });
}

}  // namespace ashlar::kernels
