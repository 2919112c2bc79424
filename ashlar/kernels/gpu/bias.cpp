#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

void bias_forward(const Context& ctx, const Tensor& b_N, const Matrix& y_TN) {
  if (y_TN.rows * y_TN.cols == 0) return;
  launch(ctx, device::BiasForward{.b = floats(b_N),
                                  .y = elements(y_TN),
                                  .rows = y_TN.rows,
                                  .width = y_TN.cols,
                                  .stride = y_TN.stride,
                                  .by_vectors = by_vectors(y_TN) && begins_at_vector(b_N.data)});
}

void bias_backward(const Context& ctx, const Matrix& dy_TN, const Tensor& db_N) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials_PN =
      ctx.workspace->take(DType::kF32, {num_partials(dy_TN.rows), dy_TN.cols});
  if (dy_TN.rows * dy_TN.cols == 0) return;
  launch(ctx, device::BiasBackward{
                  .dy = elements(dy_TN),
                  .partials = floats(partials_PN),
                  .rows = dy_TN.rows,
                  .width = dy_TN.cols,
                  .stride = dy_TN.stride,
                  .by_vectors = by_vectors(dy_TN) && begins_at_vector(partials_PN.data)});
  add_partials(ctx, partials_PN, db_N);
}

}  // namespace ashlar::kernels::gpu
