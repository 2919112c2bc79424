#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

const int32_t* ends_of_experts(const Tensor& row_of_expert_E1) {
  return row_of_expert_E1 ? reinterpret_cast<const int32_t*>(row_of_expert_E1.data) : nullptr;
}

}  // namespace

void swiglu_forward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  if (ctx.meta() || act_TF.empty()) return;
  const int64_t F = act_TF.shape[1];
  check_launch(
      device::launch(device::SwigluForward{.row_of_expert = ends_of_experts(row_of_expert_E1),
                                           .num_experts = row_of_expert_E1.numel() - 1,
                                           .gate_up = elements(gate_up_T2F),
                                           .act = elements(act_TF),
                                           .rows = act_TF.shape[0],
                                           .width = F,
                                           .by_vectors = by_vectors(F, {gate_up_T2F, act_TF})}));
}

void swiglu_backward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  if (ctx.meta() || dact_TF.empty()) return;
  const int64_t F = dact_TF.shape[1];
  check_launch(device::launch(
      device::SwigluBackward{.row_of_expert = ends_of_experts(row_of_expert_E1),
                             .num_experts = row_of_expert_E1.numel() - 1,
                             .dact = elements(dact_TF),
                             .gate_up = elements(gate_up_T2F),
                             .dgate_up = elements(dgate_up_T2F),
                             .rows = dact_TF.shape[0],
                             .width = F,
                             .by_vectors = by_vectors(F, {dact_TF, gate_up_T2F, dgate_up_T2F})}));
}

}  // namespace ashlar::kernels::gpu
