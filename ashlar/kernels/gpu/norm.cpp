#include "ashlar/core/rounding.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

void check_width(int64_t width) {
  ASHLAR_REQUIRE(width <= device::kMaxRowWidth, kDevice,
                 "a width of {} is more than the {} that norms on a GPU hold in registers", width,
                 device::kMaxRowWidth);
}

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T, double weight_offset) {
  const int64_t T = h_TH.shape[0], H = w_H.numel();
  check_width(H);
  if (ctx.meta() || T == 0) return;
  check_launch(device::launch(device::NormForward{.h = elements(h_TH),
                                                  .w = floats(w_H),
                                                  .y = elements(y_TH),
                                                  .rstd = floats(rstd_T),
                                                  .rows = T,
                                                  .width = H,
                                                  .eps = float(eps),
                                                  .weight_offset = float(weight_offset),
                                                  .by_vectors = by_vectors(H, {h_TH, w_H, y_TH})}));
}

void rms_norm_backward(const Context& ctx, const RmsNormBackward& x) {
  const int64_t T = x.h_TH.shape[0], H = x.w_H.numel();
  check_width(H);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials =
      ctx.workspace->take(DType::kF32, {ceil_div(T, int64_t(device::kPartialRows)), H});
  if (ctx.meta() || T == 0) return;
  check_launch(device::launch(device::NormBackward{
      .dy = elements(x.dy_TH),
      .h = elements(x.h_TH),
      .w = floats(x.w_H),
      .rstd = floats(x.rstd_T),
      .dh_in = elements(x.dh_in_TH),
      .dy_in = elements(x.dy_in_TH),
      .dh = elements(x.dh_TH),
      .partials = floats(partials),
      .rows = T,
      .width = H,
      .weight_offset = float(x.weight_offset),
      .by_vectors =
          by_vectors(H, {x.dy_TH, x.h_TH, x.w_H, x.dh_in_TH, x.dy_in_TH, x.dh_TH, partials})}));
  check_launch(device::launch(device::SumPartials{
      .partials = floats(partials), .to = floats(x.dw_H), .rows = partials.shape[0], .width = H}));
}

}  // namespace ashlar::kernels::gpu
