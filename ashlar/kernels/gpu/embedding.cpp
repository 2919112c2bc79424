#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

// Adds to dscale and dbias, of which partials [2, .., H] are made first.
void add_affine_gradients(const Context& ctx, const EmbeddingBackward& x,
                          const Tensor& partials_2PH) {
  const int64_t H = x.emb_VH.shape[1];
  launch(ctx,
         device::EmbeddingAffineGradient{
             .ids = ints(x.ids_T),
             .emb = floats(x.emb_VH),
             .scale = floats(x.scale_H),
             .bias = floats(x.bias_H),
             .dx = elements(x.dx_TH),
             .partials = floats(partials_2PH),
             .rows = x.ids_T.numel(),
             .width = H,
             .by_vectors = by_vectors(H, {x.emb_VH, x.scale_H, x.bias_H, x.dx_TH, partials_2PH})});
  add_partials(ctx, partials_2PH.slice(0, 1), x.dscale_H);
  add_partials(ctx, partials_2PH.slice(1, 2), x.dbias_H);
}

}  // namespace

void embedding_forward(const Context& ctx, const EmbeddingForward& x) {
  if (x.x_TH.empty()) return;
  const int64_t H = x.emb_VH.shape[1];
  launch(ctx, device::EmbeddingForward{
                  .ids = ints(x.ids_T),
                  .emb = floats(x.emb_VH),
                  .scale = floats(x.scale_H),
                  .bias = floats(x.bias_H),
                  .x = elements(x.x_TH),
                  .rows = x.ids_T.numel(),
                  .width = H,
                  .by_vectors = by_vectors(H, {x.emb_VH, x.scale_H, x.bias_H, x.x_TH})});
}

void embedding_backward(const Context& ctx, const EmbeddingBackward& x) {
  const int64_t T = x.ids_T.numel(), H = x.emb_VH.shape[1];
  const Arena::Scope scope(*ctx.workspace);
  const Tensor sorted_ids_T = ctx.workspace->take(DType::kI32, {T});
  const Tensor sorted_rows_T = ctx.workspace->take(DType::kI32, {T});
  Tensor partials_2PH;
  if (x.scale_H) partials_2PH = ctx.workspace->take(DType::kF32, {2, num_partials(T), H});
  if (x.dx_TH.empty()) return;
  if (x.scale_H) add_affine_gradients(ctx, x, partials_2PH);
  launch(ctx, device::SortIds{.ids = ints(x.ids_T),
                              .sorted_ids = ints(sorted_ids_T),
                              .sorted_rows = ints(sorted_rows_T),
                              .rows = T});
  launch(ctx, device::EmbeddingTableGradient{
                  .sorted_ids = ints(sorted_ids_T),
                  .sorted_rows = ints(sorted_rows_T),
                  .scale = floats(x.scale_H),
                  .dx = elements(x.dx_TH),
                  .demb = floats(x.demb_VH),
                  .rows = T,
                  .width = H,
                  .fixed_id = x.fixed_id,
                  .by_vectors = by_vectors(H, {x.scale_H, x.dx_TH, x.demb_VH})});
}

}  // namespace ashlar::kernels::gpu
