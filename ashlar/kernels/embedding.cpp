#include "ashlar/kernels/embedding.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check(const Tensor& ids_T, const Tensor& emb_VH, const Tensor& scale_H, const Tensor& bias_H,
           const Tensor& x_TH) {
  ASHLAR_ASSERT(ids_T.dtype == DType::kI32 && emb_VH.shape.ndim() == 2 && is_stream(emb_VH.dtype));
  const int64_t H = emb_VH.shape[1];
  check_real(x_TH, {ids_T.numel(), H});
  if (!scale_H && !bias_H) return;  // plain
  for (const Tensor* t : {&scale_H, &bias_H}) check_tensor(*t, {H}, emb_VH.dtype);
}

// Bytes of a row of the table for each token of x.
int64_t rows_bytes(const Tensor& emb_VH, const Tensor& x_TH) {
  return x_TH.numel() * size_of(emb_VH.dtype);
}

}  // namespace

void embedding_forward(const Context& ctx, const EmbeddingForward& x) {
  check(x.ids_T, x.emb_VH, x.scale_H, x.bias_H, x.x_TH);
  const auto call = ctx.record("embedding_forward", x.x_TH.dtype,
                               {x.scale_H ? 2 * x.x_TH.numel() : 0,
                                rows_bytes(x.emb_VH, x.x_TH) + x.x_TH.bytes() + x.ids_T.bytes()});
  ctx.ops->embedding_forward(ctx, x);
}

void embedding_backward(const Context& ctx, const EmbeddingBackward& x) {
  check(x.ids_T, x.emb_VH, x.scale_H, x.bias_H, x.dx_TH);
  check(x.ids_T, x.demb_VH, x.dscale_H, x.dbias_H, x.dx_TH);
  ASHLAR_ASSERT(bool(x.scale_H) == bool(x.dscale_H));
  check_tensor(x.demb_VH, x.emb_VH.shape, x.emb_VH.dtype);
  // The gradient is read once for the table, which is read and written, and with a scale once more
  // beside the rows of the table.
  const int64_t flop = x.scale_H ? 6 : 1, reads = x.scale_H ? 2 : 1;
  const auto call = ctx.record(
      "embedding_backward", x.dx_TH.dtype,
      {flop * x.dx_TH.numel(),
       reads * x.dx_TH.bytes() + (reads + 1) * rows_bytes(x.demb_VH, x.dx_TH) + x.ids_T.bytes()});
  ctx.ops->embedding_backward(ctx, x);
}

}  // namespace ashlar::kernels
