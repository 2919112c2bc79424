#include "ashlar/nn/loss.h"

#include <algorithm>

#include "ashlar/kernels/cross_entropy.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

DType head_compute(const Model& model) {
  return model.spec().head_fp32 ? model.types().wide : model.types().compute;
}

}  // namespace

void head_logits(const Context& ctx, const Model& model, const Tensor& final_TH,
                 const Tensor& logits_TV) {
  linear_forward(ctx, head_compute(model), Matrix::of(final_TH), model.head().operand,
                 Matrix::of(logits_TV));
}

void head_loss(const Context& ctx, const Model& model, const Tensor& final_TH,
               const Tensor& targets_T, const Tensor& loss_T) {
  const int64_t T = final_TH.shape[0], V = model.spec().vocab_size;
  const int64_t chunk = std::min(T, most_logits_rows(ctx, V));
  const Arena::Scope scope(*ctx.workspace);
  const Tensor logits = ctx.workspace->take(model.types().wide, {chunk, V});
  for (int64_t t = 0; t < T; t += chunk) {
    const int64_t end = std::min(T, t + chunk);
    const Tensor part = logits.slice(0, end - t);
    head_logits(ctx, model, final_TH.slice(t, end), part);
    cross_entropy(
        ctx,
        {.logits_tV = part, .targets_t = targets_T.slice(t, end), .loss_t = loss_T.slice(t, end)});
  }
}

void head_loss_backward(const Context& ctx, const Model& model, const Tensor& final_TH,
                        const Tensor& targets_T, double scale, const Tensor& loss_T,
                        const Tensor& dfinal_TH) {
  const int64_t T = final_TH.shape[0], V = model.spec().vocab_size;
  const int64_t chunk = std::min(T, most_logits_rows(ctx, V));
  const DType compute = head_compute(model);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor logits = ctx.workspace->take(model.types().wide, {chunk, V});
  const Tensor dlogits =
      logits.dtype == final_TH.dtype ? logits : ctx.workspace->take(final_TH.dtype, {chunk, V});
  for (int64_t t = 0; t < T; t += chunk) {
    const int64_t end = std::min(T, t + chunk);
    const Tensor part = logits.slice(0, end - t), dpart = dlogits.slice(0, end - t);
    const Tensor final_part = final_TH.slice(t, end);
    head_logits(ctx, model, final_part, part);
    cross_entropy(ctx, {.logits_tV = part,
                        .targets_t = targets_T.slice(t, end),
                        .scale = scale,
                        .loss_t = loss_T.slice(t, end),
                        .dlogits_tV = dpart});
    linear_backward_input(ctx, compute, Matrix::of(dpart), model.head().operand,
                          Matrix::of(dfinal_TH.slice(t, end)));
    if (model.head().gradient)
      linear_backward_weight(ctx, compute, Matrix::of(dpart), Matrix::of(final_part),
                             model.head().gradient);
  }
}

}  // namespace ashlar::nn
