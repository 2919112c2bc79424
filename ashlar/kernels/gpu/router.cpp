#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

void add_mix_gradients(const Context& ctx, const RouterMixBackward& x, const Tensor& partials_PR) {
  const int64_t R = x.r_TR.shape[1];
  launch(ctx, device::RouterMixSums{.dn = elements(x.dn_TR),
                                    .dr = floats(x.dr_TR),
                                    .r = floats(x.r_TR),
                                    .r_prev = floats(x.r_prev_TR),
                                    .rstd = floats(x.rstd_T),
                                    .partials = floats(partials_PR),
                                    .rows = x.r_TR.shape[0],
                                    .width = R,
                                    .by_vectors = by_vectors(
                                        R, {x.dn_TR, x.dr_TR, x.r_TR, x.r_prev_TR, partials_PR})});
  add_partials(ctx, partials_PR.slice(0, 1), x.db_dn_R);
  add_partials(ctx, partials_PR.slice(1, 2), x.dw_R);
  if (x.gamma_R) add_partials(ctx, partials_PR.slice(2, 3), x.dgamma_R);
}

}  // namespace

void router_mix_forward(const Context& ctx, const RouterMixForward& x) {
  if (x.r_TR.empty()) return;
  const int64_t R = x.r_TR.shape[1];
  launch(ctx, device::RouterMixForward{.r = floats(x.r_TR),
                                       .b = floats(x.b_dn_R),
                                       .r_prev = floats(x.r_prev_TR),
                                       .gamma = floats(x.gamma_R),
                                       .w = floats(x.w_R),
                                       .n = elements(x.n_TR),
                                       .rstd = floats(x.rstd_T),
                                       .rows = x.r_TR.shape[0],
                                       .width = R,
                                       .eps = float(x.eps),
                                       .by_vectors = by_vectors(R, {x.r_TR, x.b_dn_R, x.r_prev_TR,
                                                                    x.gamma_R, x.w_R, x.n_TR})});
}

void router_mix_backward(const Context& ctx, const RouterMixBackward& x) {
  const int64_t T = x.r_TR.shape[0], R = x.r_TR.shape[1];
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials_PR =
      ctx.workspace->take(DType::kF32, {x.gamma_R ? 3 : 2, num_partials(T), R});
  if (x.r_TR.empty()) return;
  const bool low = x.dr_low_TR.data != x.dr_TR.data;
  launch(ctx, device::RouterMixBackward{
                  .dn = elements(x.dn_TR),
                  .dr_next = floats(x.dr_next_TR),
                  .r = floats(x.r_TR),
                  .gamma = floats(x.gamma_R),
                  .w = floats(x.w_R),
                  .rstd = floats(x.rstd_T),
                  .dr = floats(x.dr_TR),
                  .dr_prev = floats(x.dr_prev_TR),
                  .dr_low = low ? elements(x.dr_low_TR) : device::Elements(),
                  .rows = T,
                  .width = R,
                  .by_vectors = by_vectors(R, {x.dn_TR, x.dr_next_TR, x.r_TR, x.gamma_R, x.w_R,
                                               x.dr_TR, x.dr_prev_TR, x.dr_low_TR})});
  add_mix_gradients(ctx, x, partials_PR);
}

void bias_gelu_forward(const Context& ctx, const Tensor& z_TR, const Tensor& b_R,
                       const Tensor& s_TR) {
  if (z_TR.empty()) return;
  const int64_t R = b_R.numel();
  launch(ctx, device::BiasGeluForward{.z = floats(z_TR),
                                      .b = floats(b_R),
                                      .s = elements(s_TR),
                                      .rows = z_TR.shape[0],
                                      .width = R,
                                      .by_vectors = by_vectors(R, {z_TR, b_R, s_TR})});
}

void bias_gelu_backward(const Context& ctx, const BiasGeluBackward& x) {
  const int64_t T = x.z_TR.shape[0], R = x.b_R.numel();
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials_PR = ctx.workspace->take(DType::kF32, {num_partials(T), R});
  if (x.z_TR.empty()) return;
  launch(ctx, device::BiasGeluBackward{
                  .ds = elements(x.ds_TR),
                  .z = floats(x.z_TR),
                  .b = floats(x.b_R),
                  .dz = elements(x.dz_TR),
                  .partials = floats(partials_PR),
                  .rows = T,
                  .width = R,
                  .by_vectors = by_vectors(R, {x.ds_TR, x.z_TR, x.b_R, x.dz_TR, partials_PR})});
  add_partials(ctx, partials_PR, x.db_R);
}

void router_select_forward(const Context& ctx, const RouterSelectForward& x) {
  if (x.logits_TX.empty()) return;
  launch(ctx, device::RouterSelectForward{.logits = floats(x.logits_TX),
                                          .bias = floats(x.bias_X),
                                          .p = floats(x.p_TX),
                                          .expert = ints(x.expert_T),
                                          .weight = floats(x.weight_T),
                                          .rows = x.logits_TX.shape[0],
                                          .classes = int32_t(x.bias_X.numel())});
}

void router_select_backward(const Context& ctx, const RouterSelectBackward& x) {
  static_assert(kNoClass < 0);
  if (x.p_TX.empty()) return;
  launch(ctx, device::RouterSelectBackward{.dweight = floats(x.dweight_T),
                                           .p = floats(x.p_TX),
                                           .expert = ints(x.expert_T),
                                           .dlogits = elements(x.dlogits_TX),
                                           .rows = x.p_TX.shape[0],
                                           .classes = int32_t(x.p_TX.shape[1])});
}

}  // namespace ashlar::kernels::gpu
