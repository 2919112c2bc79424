#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

template <typename Call>
device::Choices choices_of(const Call& x, int64_t width, bool by_vectors) {
  return {.row_of_token = ints(x.plan.row_of_token_Tk),
          .weight = floats(x.weight_Tk),
          .tokens = x.weight_Tk.shape[0],
          .k = x.weight_Tk.shape[1],
          .width = width,
          .identity = x.identity,
          .by_vectors = by_vectors};
}

}  // namespace

// A launch for each segment of padding: a batch has few.
void leave_out_padding(const Context& ctx, const Sequence& sequence, const Tensor& expert_Tk) {
  static_assert(kNoClass == -1);  // all bits are set
  for (const Segment& s : sequence.segments()) {
    if (!s.padding || s.length == 0) continue;
    const Tensor padding = expert_Tk.slice(s.row, s.row + s.length);
    launch(ctx, device::Fill{.to = padding.data,
                             .rows = 1,
                             .row_bytes = padding.bytes(),
                             .stride_bytes = 0,
                             .pattern = ~uint64_t{0},
                             .unit_bytes = 1});
  }
}

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_Tk,
                const RoutePlan& plan) {
  const int64_t choices = expert_Tk.numel();
  const Arena::Scope scope(*ctx.workspace);
  const Tensor counts =
      ctx.workspace->take(DType::kI32, {device::num_choice_counts(1, choices, num_experts + 1)});
  launch(ctx, device::RoutePlan{.expert = ints(expert_Tk),
                                .choices = choices,
                                .k = expert_Tk.shape[1],
                                .num_experts = num_experts,
                                .counts = ints(counts),
                                .row_of_expert = ints(plan.row_of_expert_E1),
                                .token_of_row = ints(plan.token_of_row_R),
                                .row_of_token = ints(plan.row_of_token_Tk),
                                .count = wide_ints(plan.count_X)});
}

void gather_rows(const Context& ctx, const RoutePlan& plan, const Tensor& m_TH,
                 const Tensor& x_rows_RH) {
  if (x_rows_RH.empty()) return;
  launch(ctx, device::GatherRows{.token_of_row = ints(plan.token_of_row_R),
                                 .row_of_expert = ints(plan.row_of_expert_E1),
                                 .num_experts = plan.row_of_expert_E1.numel() - 1,
                                 .from = m_TH.data,
                                 .to = x_rows_RH.data,
                                 .rows = x_rows_RH.shape[0],
                                 .row_bytes = m_TH.shape[1] * size_of(m_TH.dtype)});
}

void combine_forward(const Context& ctx, const CombineForward& x) {
  if (x.e_TH.empty()) return;
  const int64_t H = x.e_TH.shape[1];
  launch(ctx, device::CombineForward{
                  .choices = choices_of(x, H, by_vectors(H, {x.y_rows_RH, x.m_TH, x.e_TH})),
                  .y_rows = elements(x.y_rows_RH),
                  .m = elements(x.m_TH),
                  .e = elements(x.e_TH)});
}

void combine_backward(const Context& ctx, const CombineBackward& x) {
  if (x.de_TH.empty()) return;
  const int64_t H = x.de_TH.shape[1];
  launch(ctx, device::CombineBackward{
                  .choices =
                      choices_of(x, H, by_vectors(H, {x.de_TH, x.y_rows_RH, x.m_TH, x.dy_rows_RH})),
                  .de = elements(x.de_TH),
                  .y_rows = elements(x.y_rows_RH),
                  .m = elements(x.m_TH),
                  .dy_rows = elements(x.dy_rows_RH),
                  .dweight = floats(x.dweight_Tk)});
}

void scatter_rows_add(const Context& ctx, const ScatterRowsAdd& x) {
  if (x.dm_TH.empty()) return;
  const int64_t H = x.dm_TH.shape[1];
  launch(ctx, device::ScatterRowsAdd{
                  .choices = choices_of(
                      x, H, by_vectors(H, {x.shared_TH, x.dx_rows_RH, x.de_TH, x.dm_TH})),
                  .shared = elements(x.shared_TH),
                  .dx_rows = elements(x.dx_rows_RH),
                  .de = elements(x.de_TH),
                  .dm = elements(x.dm_TH)});
}

void shared_add_forward(const Context& ctx, const Tensor& z_T, const Tensor& s_TH,
                        const Tensor& e_TH) {
  if (e_TH.empty()) return;
  const int64_t H = e_TH.shape[1];
  launch(ctx, device::SharedAddForward{.z = floats(z_T),
                                       .s = elements(s_TH),
                                       .e = elements(e_TH),
                                       .rows = e_TH.shape[0],
                                       .width = H,
                                       .by_vectors = by_vectors(H, {s_TH, e_TH})});
}

void shared_add_backward(const Context& ctx, const SharedAddBackward& x) {
  if (x.de_TH.empty()) return;
  const int64_t H = x.de_TH.shape[1];
  launch(ctx, device::SharedAddBackward{.z = floats(x.z_T),
                                        .de = elements(x.de_TH),
                                        .s = elements(x.s_TH),
                                        .ds = elements(x.ds_TH),
                                        .dz = floats(x.dz_T),
                                        .rows = x.de_TH.shape[0],
                                        .width = H,
                                        .by_vectors = by_vectors(H, {x.de_TH, x.s_TH, x.ds_TH})});
}

void swiglu_forward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  if (act_TF.empty()) return;
  const int64_t F = act_TF.shape[1];
  launch(ctx, device::SwigluForward{.row_of_expert = ints(row_of_expert_E1),
                                    .num_experts = row_of_expert_E1.numel() - 1,
                                    .gate_up = elements(gate_up_T2F),
                                    .act = elements(act_TF),
                                    .rows = act_TF.shape[0],
                                    .width = F,
                                    .by_vectors = by_vectors(F, {gate_up_T2F, act_TF})});
}

void swiglu_backward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  if (dact_TF.empty()) return;
  const int64_t F = dact_TF.shape[1];
  launch(ctx,
         device::SwigluBackward{.row_of_expert = ints(row_of_expert_E1),
                                .num_experts = row_of_expert_E1.numel() - 1,
                                .dact = elements(dact_TF),
                                .gate_up = elements(gate_up_T2F),
                                .dgate_up = elements(dgate_up_T2F),
                                .rows = dact_TF.shape[0],
                                .width = F,
                                .by_vectors = by_vectors(F, {dact_TF, gate_up_T2F, dgate_up_T2F})});
}

}  // namespace ashlar::kernels::gpu
