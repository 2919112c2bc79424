#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

void check_width(int64_t width) {
  ASHLAR_REQUIRE(width <= device::kMaxRowWidth, kDevice,
                 "a width of {} is more than the {} that norms on a GPU hold in registers", width,
                 device::kMaxRowWidth);
}

device::Merge merge_of(const Tensor& o, const Tensor& r, const MergeParams& params,
                       const MergeFactors& factors) {
  return {.o = elements(o),
          .r = elements(r),
          .ao = floats(params.hidden_scale_H),
          .bo = floats(params.hidden_bias_H),
          .ar = floats(params.residual_scale_H),
          .br = floats(params.residual_bias_H),
          .alpha = float(factors.alpha),
          .beta = float(factors.beta)};
}

bool vectors_fit(int64_t width, const MergeParams& params) {
  return by_vectors(width, {params.hidden_scale_H, params.hidden_bias_H, params.residual_scale_H,
                            params.residual_bias_H});
}

// Adds to dw, of which the launch makes partials [.., H] first.
void run_norm_backward(const Context& ctx, device::NormBackward x, const Tensor& partials_PH,
                       const Tensor& dw_H) {
  x.partials = floats(partials_PH);
  x.by_vectors = x.by_vectors && begins_at_vector(x.partials);
  launch(ctx, x);
  add_partials(ctx, partials_PH, dw_H);
}

// Fills h again.
void merge_again(const Context& ctx, const MergeNormBackward& x, const Tensor& h_TH) {
  const int64_t H = h_TH.shape[1];
  launch(ctx, device::NormForward{
                  .merge = merge_of(x.o_TH, x.r_TH, x.params, x.factors),
                  .h = elements(h_TH),
                  .w = nullptr,
                  .y = {},
                  .rstd = nullptr,
                  .rows = h_TH.shape[0],
                  .width = H,
                  .eps = 0,
                  .weight_offset = 0,
                  .by_vectors = by_vectors(H, {x.o_TH, x.r_TH, h_TH}) && vectors_fit(H, x.params)});
}

// Through the norm: to dr and, if there is one, the share d_o.
void norm_backward(const Context& ctx, const MergeNormBackward& x, const Tensor& h_TH,
                   const Tensor& dr_TH, const Tensor& d_o_TH, const Tensor& partials_PH) {
  const int64_t H = h_TH.shape[1];
  run_norm_backward(
      ctx,
      {.dy = elements(x.dy_TH),
       .h = elements(h_TH),
       .w = floats(x.w_H),
       .rstd = floats(x.rstd_T),
       .dh_in = elements(x.dh_in_TH),
       .dy_in = elements(x.dy_in_TH),
       .dr = elements(dr_TH),
       .d_o = elements(d_o_TH),
       .alpha = float(x.factors.alpha),
       .beta = float(x.factors.beta),
       .partials = nullptr,
       .rows = h_TH.shape[0],
       .width = H,
       .weight_offset = float(x.weight_offset),
       .by_vectors = by_vectors(H, {x.dy_TH, h_TH, x.w_H, x.dh_in_TH, x.dy_in_TH, dr_TH, d_o_TH})},
      partials_PH, x.dw_H);
}

// From dh to dr, d_o and the gradients of the vectors, if there are any.
void merge_backward(const Context& ctx, const MergeNormBackward& x, const Tensor& dh_TH,
                    const Tensor& partials_4PH) {
  const int64_t T = x.dr_TH.shape[0], H = x.dr_TH.shape[1];
  launch(ctx, device::MergeBackward{.merge = merge_of(x.o_TH, x.r_TH, x.params, x.factors),
                                    .dh = elements(dh_TH),
                                    .d_o = elements(x.d_o_TH),
                                    .dr = elements(x.dr_TH),
                                    .partials = floats(partials_4PH),
                                    .rows = T,
                                    .width = H,
                                    .by_vectors = by_vectors(H, {x.o_TH, x.r_TH, dh_TH, x.d_o_TH,
                                                                 x.dr_TH, partials_4PH}) &&
                                                  vectors_fit(H, x.params)});
  if (!partials_4PH) return;
  const Tensor gradients[] = {x.grads.hidden_scale_H, x.grads.hidden_bias_H,
                              x.grads.residual_scale_H, x.grads.residual_bias_H};
  for (int64_t i = 0; i < 4; ++i) add_partials(ctx, partials_4PH.slice(i, i + 1), gradients[i]);
}

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T, double weight_offset) {
  const int64_t T = h_TH.shape[0], H = w_H.numel();
  check_width(H);
  if (T == 0) return;
  launch(ctx, device::NormForward{.h = elements(h_TH),
                                  .w = floats(w_H),
                                  .y = elements(y_TH),
                                  .rstd = floats(rstd_T),
                                  .rows = T,
                                  .width = H,
                                  .eps = float(eps),
                                  .weight_offset = float(weight_offset),
                                  .by_vectors = by_vectors(H, {h_TH, w_H, y_TH})});
}

void rms_norm_backward(const Context& ctx, const RmsNormBackward& x) {
  const int64_t T = x.h_TH.shape[0], H = x.w_H.numel();
  check_width(H);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials = ctx.workspace->take(DType::kF32, {num_partials(T), H});
  if (T == 0) return;
  run_norm_backward(
      ctx,
      {.dy = elements(x.dy_TH),
       .h = elements(x.h_TH),
       .w = floats(x.w_H),
       .rstd = floats(x.rstd_T),
       .dh_in = elements(x.dh_in_TH),
       .dy_in = elements(x.dy_in_TH),
       .dr = elements(x.dh_TH),
       .partials = nullptr,
       .rows = T,
       .width = H,
       .weight_offset = float(x.weight_offset),
       .by_vectors = by_vectors(H, {x.dy_TH, x.h_TH, x.w_H, x.dh_in_TH, x.dy_in_TH, x.dh_TH})},
      partials, x.dw_H);
}

void merge_norm_forward(const Context& ctx, const MergeNormForward& x) {
  const int64_t T = x.h_TH.shape[0], H = x.h_TH.shape[1];
  check_width(H);
  if (x.h_TH.empty()) return;
  device::Merge merge = merge_of(x.o_TH, x.r_TH, x.params, x.factors);
  merge.r_norm = floats(x.r_norm_H);
  merge.r_rstd = floats(x.r_rstd_T);
  launch(ctx, device::NormForward{.merge = merge,
                                  .h = elements(x.h_TH),
                                  .w = floats(x.w_H),
                                  .y = elements(x.y_TH),
                                  .rstd = floats(x.rstd_T),
                                  .rows = T,
                                  .width = H,
                                  .eps = float(x.eps),
                                  .weight_offset = float(x.weight_offset),
                                  .by_vectors = by_vectors(H, {x.o_TH, x.r_TH, x.r_norm_H, x.w_H,
                                                               x.h_TH, x.y_TH}) &&
                                                vectors_fit(H, x.params)});
}

// Behind a merge with vectors dh goes through memory, in the type in which the merge reads it: sums
// for four more vectors do not fit the registers of a thread beside those for w.  An h that is
// absent goes through the same memory before.
void merge_norm_backward(const Context& ctx, const MergeNormBackward& x) {
  const int64_t T = x.dr_TH.shape[0], H = x.dr_TH.shape[1];
  check_width(H);
  const bool norm = bool(x.w_H), vectors = bool(x.params.hidden_scale_H);
  const Arena::Scope scope(*ctx.workspace);
  Tensor memory_TH, partials_PH, partials_4PH;
  if (norm && (vectors || !x.h_TH)) memory_TH = ctx.workspace->take(x.dr_TH.dtype, x.dr_TH.shape);
  if (norm) partials_PH = ctx.workspace->take(DType::kF32, {num_partials(T), H});
  if (vectors) partials_4PH = ctx.workspace->take(DType::kF32, {4, num_partials(T), H});
  if (x.dr_TH.empty()) return;
  if (!norm) return merge_backward(ctx, x, x.dh_in_TH, partials_4PH);
  if (!x.h_TH) merge_again(ctx, x, memory_TH);
  const Tensor& h_TH = x.h_TH ? x.h_TH : memory_TH;
  if (!vectors) return norm_backward(ctx, x, h_TH, x.dr_TH, x.d_o_TH, partials_PH);
  norm_backward(ctx, x, h_TH, memory_TH, {}, partials_PH);
  merge_backward(ctx, x, memory_TH, partials_4PH);
}

}  // namespace ashlar::kernels::gpu
