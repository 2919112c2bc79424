// The functions of kernels/ops.h that GPUs have so far, with the same meaning and arguments, over
// tensors in the memory of the device.  Only copy, add and fill take F64; none has a plain
// reference.  They rely on ids and targets that whoever loaded the batch has checked.
#pragma once

#include "ashlar/kernels/ops.h"

// Lists them by name, one a line.
#define ASHLAR_GPU_OPS(HAS)            \
  HAS(copy)                            \
  HAS(add)                             \
  HAS(scale)                           \
  HAS(fill)                            \
  HAS(upload_i32)                      \
  HAS(upload_real)                     \
  HAS(download_i32)                    \
  HAS(download_i64)                    \
  HAS(download_real)                   \
  HAS(download_list)                   \
  HAS(embedding_forward)               \
  HAS(embedding_backward)              \
  HAS(attention_forward)               \
  HAS(attention_backward)              \
  HAS(rms_norm_forward)                \
  HAS(rms_norm_backward)               \
  HAS(merge_norm_forward)              \
  HAS(merge_norm_backward)             \
  HAS(rope_table)                      \
  HAS(heads_forward)                   \
  HAS(heads_backward)                  \
  HAS(conv_columns_forward)            \
  HAS(conv_columns_backward)           \
  HAS(qk_forward)                      \
  HAS(qk_backward)                     \
  HAS(router_mix_forward)              \
  HAS(router_mix_backward)             \
  HAS(bias_gelu_forward)               \
  HAS(bias_gelu_backward)              \
  HAS(router_select_forward)           \
  HAS(router_select_backward)          \
  HAS(bias_forward)                    \
  HAS(bias_backward)                   \
  HAS(output_gate_forward)             \
  HAS(output_gate_backward)            \
  HAS(cross_entropy)                   \
  HAS(most_logits_rows)                \
  HAS(topk_forward)                    \
  HAS(topk_backward)                   \
  HAS(row_loads)                       \
  HAS(leave_out_padding)               \
  HAS(route_plan)                      \
  HAS(gather_rows)                     \
  HAS(combine_forward)                 \
  HAS(combine_backward)                \
  HAS(scatter_rows_add)                \
  HAS(shared_add_forward)              \
  HAS(shared_add_backward)             \
  HAS(swiglu_forward)                  \
  HAS(swiglu_backward)                 \
  HAS(balance_update)                  \
  HAS(adamw)                           \
  HAS(muon_momentum)                   \
  HAS(muon_apply)                      \
  HAS(packs_in_update)                 \
  HAS(sum_of_squares)                  \
  HAS(first_non_finite)                \
  HAS(measure_peak_flops)              \
  HAS(flop_within)                     \
  HAS(bf16_is_faster)                  \
  HAS(orthogonalize)                   \
  HAS(operand_layout)                  \
  HAS(pack)                            \
  HAS(linear_forward)                  \
  HAS(linear_backward_input)           \
  HAS(linear_backward_weight)          \
  HAS(grouped_linear_forward)          \
  HAS(grouped_linear_backward_input)   \
  HAS(grouped_linear_backward_weight)  \
  HAS(blockdiag_linear_forward)        \
  HAS(blockdiag_linear_backward_input) \
  HAS(blockdiag_linear_backward_weight)

namespace ashlar::kernels::gpu {

#define ASHLAR_DECLARE_GPU_OP(name) std::remove_pointer_t<decltype(Ops::name)> name;
ASHLAR_GPU_OPS(ASHLAR_DECLARE_GPU_OP)
#undef ASHLAR_DECLARE_GPU_OP

// Copies a list of the host to the beginning of a tensor.  The list may change when it returns.
void upload_bytes(const Context&, const void* from, int64_t bytes, const Tensor& to);

// Its other functions raise kDevice, on meta too: a dry run refuses what a run could not do.
extern const Ops kOps;

}  // namespace ashlar::kernels::gpu
