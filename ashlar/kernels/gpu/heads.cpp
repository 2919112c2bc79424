#include <vector>

#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"
#include "ashlar/kernels/gpu/sequence_lists.h"

namespace ashlar::kernels::gpu {
namespace {

template <typename Call>
device::Heads heads_of(const Call& x, const Tensor& position_T) {
  return {.num_tokens = x.sequence.num_tokens(),
          .num_queries = x.shape.N,
          .num_keys = x.shape.K,
          .head_dim = x.shape.D,
          .rotary_dim = x.shape.rotary_dim,
          .row_width = x.shape.width(),
          .positions = ints(position_T),
          .table = floats(x.rope_PR),
          .qkv = elements(x.qkv),
          .q_norm = floats(x.q_norm_D),
          .k_norm = floats(x.k_norm_D),
          .weight_offset = float(x.shape.weight_offset)};
}

}  // namespace

void rope_table(const Context& ctx, const Rope& rope, const Tensor& table_PR) {
  if (ctx.meta()) return;
  std::vector<double> values(size_t(table_PR.numel()));
  const Context host{.threads = ctx.threads};
  cpu::rope_table(host, rope, tensor_over(std::span(values)).view(table_PR.shape));
  gpu::upload_real(ctx, values, table_PR);
}

void heads_forward(const Context& ctx, const HeadsForward& x) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor position_T = upload_positions(ctx, x.sequence, x.shape.rotary_dim);
  if (x.sequence.num_tokens() == 0) return;
  launch(ctx, device::HeadsForward{.heads = heads_of(x, position_T),
                                   .eps = float(x.shape.eps),
                                   .qhat = elements(x.qhat),
                                   .khat = elements(x.khat),
                                   .v = elements(x.v),
                                   .rstd_q = floats(x.rstd_q_TN),
                                   .rstd_k = floats(x.rstd_k_TK)});
}

void heads_backward(const Context& ctx, const HeadsBackward& x) {
  const int64_t T = x.sequence.num_tokens(), D = x.shape.D;
  const int64_t P = ceil_div(T, int64_t(device::kTokensOfHeadPartial));
  const Arena::Scope scope(*ctx.workspace);
  const Tensor position_T = upload_positions(ctx, x.sequence, x.shape.rotary_dim);
  Tensor partials_2PD;
  if (x.q_norm_D) partials_2PD = ctx.workspace->take(DType::kF32, {2, P, D});
  if (T == 0) return;
  launch(ctx, device::HeadsBackward{.heads = heads_of(x, position_T),
                                    .rstd_q = floats(x.rstd_q_TN),
                                    .rstd_k = floats(x.rstd_k_TK),
                                    .dqhat = elements(x.dqhat),
                                    .dkhat = elements(x.dkhat),
                                    .dv = elements(x.dv),
                                    .dqkv = elements(x.dqkv),
                                    .partials = floats(partials_2PD)});
  if (!partials_2PD) return;
  add_partials(ctx, partials_2PD.slice(0, 1), x.dq_norm_D);
  add_partials(ctx, partials_2PD.slice(1, 2), x.dk_norm_D);
}

}  // namespace ashlar::kernels::gpu
