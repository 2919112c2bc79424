// The functions that a device implements.  Context::ops is the table of a device's functions, and
// the contracts (kernels/X.cpp) call through it: they check a call, record it and pass it on, and
// know no device.  A second device is a second table.
//
// Each function has the name, the meaning and the arguments of the function in kernels/X.h; those
// that are overloaded there have names of their own.  These rules hold for every implementation:
//
// Relies on  shapes, types, absent tensors and values (of a token id, a target) being as
//            kernels/X.h states, and the call recorded.
// Must       take its workspace from ctx.workspace, in an amount that depends on shapes but not on
//            values, and then return if ctx.meta(), where a call only plans (for_tokens and
//            sum_over_tokens of cpu/elementwise.h do both); write the same bits for any number of
//            threads; run its plain reference for fp64 and if ctx.reference asks for it.
#pragma once

#include <span>
#include <type_traits>

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/balance.h"
#include "ashlar/kernels/bias.h"
#include "ashlar/kernels/conv.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/cross_entropy.h"
#include "ashlar/kernels/embedding.h"
#include "ashlar/kernels/gated_norm.h"
#include "ashlar/kernels/int8.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/linear_heads.h"
#include "ashlar/kernels/moe.h"
#include "ashlar/kernels/newton_schulz.h"
#include "ashlar/kernels/norm.h"
#include "ashlar/kernels/output_gate.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/kernels/qk.h"
#include "ashlar/kernels/recurrence.h"
#include "ashlar/kernels/rope.h"
#include "ashlar/kernels/router.h"
#include "ashlar/kernels/short_conv.h"
#include "ashlar/kernels/state_gates.h"
#include "ashlar/kernels/topk.h"
#include "ashlar/kernels/unmasked.h"
#include "ashlar/kernels/update.h"

// SAME(name): the type is that of kernels::name.  OWN(name, type): it is another.
#define ASHLAR_OPS(SAME, OWN)                                                             \
  /* copy.h */                                                                            \
  OWN(copy, void(const Context&, const Matrix& from, const Matrix& to))                   \
  OWN(add, void(const Context&, const Matrix& from, const Matrix& to))                    \
  SAME(scale)                                                                             \
  OWN(fill, void(const Context&, const Matrix& to, double value))                         \
  SAME(copy_rows)                                                                         \
  SAME(copy_from_runs)                                                                    \
  SAME(copy_to_runs)                                                                      \
  OWN(upload_i32, void(const Context&, std::span<const int32_t> from, const Tensor& to))  \
  OWN(upload_real, void(const Context&, std::span<const double> from, const Tensor& to))  \
  OWN(download_i32, void(const Context&, const Tensor& from, std::span<int32_t> to))      \
  OWN(download_i64, void(const Context&, const Tensor& from, std::span<int64_t> to))      \
  OWN(download_real, void(const Context&, const Tensor& from, std::span<double> to))      \
  OWN(download_list, void(const Context&, std::span<const Download> list))                \
  /* norm.h */                                                                            \
  SAME(rms_norm_forward)                                                                  \
  SAME(rms_norm_backward)                                                                 \
  SAME(merge_norm_forward)                                                                \
  SAME(merge_norm_backward)                                                               \
  /* router.h */                                                                          \
  SAME(router_mix_forward)                                                                \
  SAME(router_mix_backward)                                                               \
  SAME(bias_gelu_forward)                                                                 \
  SAME(bias_gelu_backward)                                                                \
  SAME(router_select_forward)                                                             \
  SAME(router_select_backward)                                                            \
  /* topk.h */                                                                            \
  SAME(topk_forward)                                                                      \
  SAME(topk_backward)                                                                     \
  SAME(row_loads)                                                                         \
  /* embedding.h */                                                                       \
  SAME(embedding_forward)                                                                 \
  SAME(embedding_backward)                                                                \
  /* cross_entropy.h */                                                                   \
  SAME(cross_entropy)                                                                     \
  SAME(most_logits_rows)                                                                  \
  /* moe.h */                                                                             \
  SAME(leave_out_padding)                                                                 \
  SAME(route_plan)                                                                        \
  SAME(gather_rows)                                                                       \
  SAME(combine_forward)                                                                   \
  SAME(combine_backward)                                                                  \
  SAME(scatter_rows_add)                                                                  \
  SAME(shared_add_forward)                                                                \
  SAME(shared_add_backward)                                                               \
  SAME(swiglu_forward)                                                                    \
  SAME(swiglu_backward)                                                                   \
  /* conv.h */                                                                            \
  SAME(conv_columns_forward)                                                              \
  SAME(conv_columns_backward)                                                             \
  /* short_conv.h */                                                                      \
  SAME(short_conv_forward)                                                                \
  SAME(short_conv_backward)                                                               \
  /* linear_heads.h */                                                                    \
  SAME(linear_heads_forward)                                                              \
  SAME(linear_heads_backward)                                                             \
  /* state_gates.h */                                                                     \
  SAME(gla_gate_forward)                                                                  \
  SAME(gla_gate_backward)                                                                 \
  SAME(delta_gates_forward)                                                               \
  SAME(delta_gates_backward)                                                              \
  /* gated_norm.h */                                                                      \
  SAME(gated_norm_squares)                                                                \
  SAME(gated_norm_forward)                                                                \
  SAME(gated_norm_dots)                                                                   \
  SAME(gated_norm_backward)                                                               \
  /* rope.h */                                                                            \
  SAME(rope_table)                                                                        \
  SAME(heads_forward)                                                                     \
  SAME(heads_backward)                                                                    \
  /* bias.h */                                                                            \
  SAME(bias_forward)                                                                      \
  SAME(bias_backward)                                                                     \
  /* output_gate.h */                                                                     \
  SAME(output_gate_forward)                                                               \
  SAME(output_gate_backward)                                                              \
  /* qk.h */                                                                              \
  SAME(qk_query_sums)                                                                     \
  SAME(qk_query_gradient_sums)                                                            \
  SAME(qk_forward)                                                                        \
  SAME(qk_backward)                                                                       \
  /* attention.h */                                                                       \
  SAME(attention_forward)                                                                 \
  SAME(attention_backward)                                                                \
  SAME(attention_merge)                                                                   \
  /* recurrence.h */                                                                      \
  SAME(recurrence_forward)                                                                \
  SAME(recurrence_backward)                                                               \
  SAME(recurrence_maps)                                                                   \
  SAME(recurrence_backward_maps)                                                          \
  SAME(apply_map)                                                                         \
  /* unmasked.h */                                                                        \
  SAME(unmasked_sums)                                                                     \
  SAME(unmasked_forward)                                                                  \
  SAME(unmasked_backward)                                                                 \
  /* balance.h */                                                                         \
  SAME(balance_update)                                                                    \
  /* update.h */                                                                          \
  SAME(adamw)                                                                             \
  SAME(muon_momentum)                                                                     \
  SAME(muon_apply)                                                                        \
  SAME(packs_in_update)                                                                   \
  SAME(sum_of_squares)                                                                    \
  SAME(first_non_finite)                                                                  \
  /* linear.h */                                                                          \
  SAME(operand_layout)                                                                    \
  SAME(pack)                                                                              \
  SAME(linear_forward)                                                                    \
  SAME(linear_backward_input)                                                             \
  SAME(linear_backward_weight)                                                            \
  SAME(grouped_linear_forward)                                                            \
  SAME(grouped_linear_backward_input)                                                     \
  SAME(grouped_linear_backward_weight)                                                    \
  SAME(blockdiag_linear_forward)                                                          \
  SAME(blockdiag_linear_backward_input)                                                   \
  SAME(blockdiag_linear_backward_weight)                                                  \
  /* int8.h */                                                                            \
  SAME(round_to_int8)                                                                     \
  /* newton_schulz.h */                                                                   \
  OWN(orthogonalize,                                                                      \
      void(const Context&, DType compute, std::span<const Tensor> stacks_GMN, int steps)) \
  /* peak.h */                                                                            \
  SAME(measure_peak_flops)                                                                \
  SAME(flop_within)                                                                       \
  SAME(bf16_is_faster)

// In the namespace of a device: declares its functions.
#define ASHLAR_DECLARE_OPS ASHLAR_OPS(ASHLAR_DECLARE_SAME, ASHLAR_DECLARE_OWN)
#define ASHLAR_DECLARE_SAME(name) decltype(kernels::name) name;
#define ASHLAR_DECLARE_OWN(name, ...) std::type_identity_t<__VA_ARGS__> name;

// There, in the braces of an Ops: its functions.
#define ASHLAR_LIST_OPS ASHLAR_OPS(ASHLAR_LIST_OP, ASHLAR_LIST_OP)
#define ASHLAR_LIST_OP(name, ...) .name = name,

namespace ashlar::kernels {

struct Ops {
#define ASHLAR_POINT_AT_SAME(name) decltype(kernels::name)* name;
#define ASHLAR_POINT_AT_OWN(name, ...) std::add_pointer_t<__VA_ARGS__> name;
  ASHLAR_OPS(ASHLAR_POINT_AT_SAME, ASHLAR_POINT_AT_OWN)
#undef ASHLAR_POINT_AT_SAME
#undef ASHLAR_POINT_AT_OWN
};

}  // namespace ashlar::kernels
