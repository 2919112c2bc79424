#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"
#include "ashlar/kernels/gpu/sequence_lists.h"

namespace ashlar::kernels::gpu {
namespace {

struct QkLists {
  Tensor position_T, link_T;
  template <typename Call>
  QkLists(const Context& ctx, const Call& x)
      : position_T(upload_positions(ctx, x.sequence, x.shape.rotary_dim)),
        link_T(upload_links(ctx, x.sequence)) {}
};

template <typename Call>
device::Qk qk_of(const Call& x, const QkLists& lists) {
  const QkShape& s = x.shape;
  return {.num_tokens = x.sequence.num_tokens(),
          .num_queries = s.N,
          .num_keys = s.K,
          .head_dim = s.D,
          .rotary_dim = s.rotary_dim,
          .num_delayed = s.num_delayed(),
          .positions = ints(lists.position_T),
          .links = ints(lists.link_T),
          .table = floats(x.rope_PR),
          .qkv = elements(x.qkv),
          .y = elements(x.y_TC),
          .b1 = floats(x.b1_C),
          .tau = floats(x.tau_K),
          .q_sum = floats(x.q_sum_TKD),
          .query_share = 1.0f / float(s.G())};
}

}  // namespace

void qk_forward(const Context& ctx, const QkForward& x) {
  const Arena::Scope scope(*ctx.workspace);
  const QkLists lists(ctx, x);
  if (x.sequence.num_tokens() == 0) return;
  launch(ctx, device::QkForward{.qk = qk_of(x, lists),
                                .eps = float(x.shape.eps),
                                .halo_vd = floats(x.halo_vd),
                                .qhat = elements(x.qhat),
                                .khat = elements(x.khat),
                                .v = elements(x.v),
                                .n_q = floats(x.n_q_TN),
                                .n_k = floats(x.n_k_TK)});
}

void qk_backward(const Context& ctx, const QkBackward& x) {
  const QkShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens(), group_width = (s.N / s.K + 1) * s.D;
  ASHLAR_REQUIRE(group_width <= device::kMaxGroupWidth, kDevice,
                 "a key head whose queries and key have {} elements is more than the {} that a "
                 "GPU's shared memory holds",
                 group_width, device::kMaxGroupWidth);
  const Arena::Scope scope(*ctx.workspace);
  const QkLists lists(ctx, x);
  const Tensor dtau_PK = ctx.workspace->take(DType::kF32, {num_partials(T), s.K});
  const Tensor db1_PC = ctx.workspace->take(DType::kF32, {num_partials(T), s.C()});
  if (T == 0) return;
  launch(ctx, device::QkBackward{.qk = qk_of(x, lists),
                                 .n_q = floats(x.n_q_TN),
                                 .n_k = floats(x.n_k_TK),
                                 .dqhat = floats(x.dqhat),
                                 .dkhat = floats(x.dkhat),
                                 .dv = floats(x.dv),
                                 .dq_sum = floats(x.dq_sum_TKD),
                                 .dy = elements(x.dy_TC),
                                 .dqkv = elements(x.dqkv),
                                 .dhalo_vd = floats(x.dhalo_vd),
                                 .dtau_partials = floats(dtau_PK),
                                 .db1_partials = floats(db1_PC)});
  add_partials(ctx, dtau_PK, x.dtau_K);
  add_partials(ctx, db1_PC, x.db1_C);
}

}  // namespace ashlar::kernels::gpu
