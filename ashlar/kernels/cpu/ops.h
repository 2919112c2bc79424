// The list of all functions that the CPU implements; a backend for another device has the same list
// in its own namespace.
//
// Each function has the name, the meaning and (hence decltype) the arguments of the function in
// kernels/X.h.  kernels/X.cpp checks a call, records it and passes it on.  An implementation
//
// Relies on  shapes, types, absent tensors and values (of a token id, a target) being as
//            kernels/X.h states, and the call recorded.
// Must       take its workspace from ctx.workspace, in an amount that depends on shapes but not on
//            values, and then return if ctx.meta(), where a call only plans (for_tokens and
//            sum_over_tokens of elementwise.h do both); write the same bits for any number of
//            threads; run its plain reference for fp64 and if ctx.reference asks for it.
#pragma once

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

namespace ashlar::kernels::cpu {

// copy.h
void copy(const Context&, const Matrix& from, const Matrix& to);
void add(const Context&, const Matrix& from, const Matrix& to);
void fill(const Context&, const Matrix& to, double value);
decltype(kernels::copy_rows) copy_rows;
decltype(kernels::copy_from_runs) copy_from_runs;
decltype(kernels::copy_to_runs) copy_to_runs;
void upload(const Context&, std::span<const int32_t> from, const Tensor& to);
void upload(const Context&, std::span<const double> from, const Tensor& to);
void download(const Context&, const Tensor& from, std::span<int32_t> to);
void download(const Context&, const Tensor& from, std::span<int64_t> to);
void download(const Context&, const Tensor& from, std::span<double> to);

// norm.h
decltype(kernels::rms_norm_forward) rms_norm_forward;
decltype(kernels::rms_norm_backward) rms_norm_backward;
decltype(kernels::merge_norm_forward) merge_norm_forward;
decltype(kernels::merge_norm_backward) merge_norm_backward;

// router.h
decltype(kernels::router_mix_forward) router_mix_forward;
decltype(kernels::router_mix_backward) router_mix_backward;
decltype(kernels::bias_gelu_forward) bias_gelu_forward;
decltype(kernels::bias_gelu_backward) bias_gelu_backward;
decltype(kernels::router_select_forward) router_select_forward;
decltype(kernels::router_select_backward) router_select_backward;

// topk.h
decltype(kernels::topk_forward) topk_forward;
decltype(kernels::topk_backward) topk_backward;
decltype(kernels::row_loads) row_loads;

// embedding.h
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;

// cross_entropy.h
decltype(kernels::cross_entropy) cross_entropy;

// moe.h
decltype(kernels::leave_out_padding) leave_out_padding;
decltype(kernels::route_plan) route_plan;
decltype(kernels::gather_rows) gather_rows;
decltype(kernels::combine_forward) combine_forward;
decltype(kernels::combine_backward) combine_backward;
decltype(kernels::scatter_rows_add) scatter_rows_add;
decltype(kernels::shared_add_forward) shared_add_forward;
decltype(kernels::shared_add_backward) shared_add_backward;
decltype(kernels::swiglu_forward) swiglu_forward;
decltype(kernels::swiglu_backward) swiglu_backward;

// conv.h
decltype(kernels::conv_columns_forward) conv_columns_forward;
decltype(kernels::conv_columns_backward) conv_columns_backward;

// short_conv.h
decltype(kernels::short_conv_forward) short_conv_forward;
decltype(kernels::short_conv_backward) short_conv_backward;

// linear_heads.h
decltype(kernels::linear_heads_forward) linear_heads_forward;
decltype(kernels::linear_heads_backward) linear_heads_backward;

// state_gates.h
decltype(kernels::gla_gate_forward) gla_gate_forward;
decltype(kernels::gla_gate_backward) gla_gate_backward;
decltype(kernels::delta_gates_forward) delta_gates_forward;
decltype(kernels::delta_gates_backward) delta_gates_backward;

// gated_norm.h
decltype(kernels::gated_norm_squares) gated_norm_squares;
decltype(kernels::gated_norm_forward) gated_norm_forward;
decltype(kernels::gated_norm_dots) gated_norm_dots;
decltype(kernels::gated_norm_backward) gated_norm_backward;

// rope.h
decltype(kernels::rope_table) rope_table;
decltype(kernels::heads_forward) heads_forward;
decltype(kernels::heads_backward) heads_backward;

// bias.h
decltype(kernels::bias_forward) bias_forward;
decltype(kernels::bias_backward) bias_backward;

// output_gate.h
decltype(kernels::output_gate_forward) output_gate_forward;
decltype(kernels::output_gate_backward) output_gate_backward;

// qk.h
decltype(kernels::qk_query_sums) qk_query_sums;
decltype(kernels::qk_query_gradient_sums) qk_query_gradient_sums;
decltype(kernels::qk_forward) qk_forward;
decltype(kernels::qk_backward) qk_backward;

// attention.h
decltype(kernels::attention_forward) attention_forward;
decltype(kernels::attention_backward) attention_backward;
decltype(kernels::attention_merge) attention_merge;

// recurrence.h
decltype(kernels::recurrence_forward) recurrence_forward;
decltype(kernels::recurrence_backward) recurrence_backward;
decltype(kernels::recurrence_maps) recurrence_maps;
decltype(kernels::recurrence_backward_maps) recurrence_backward_maps;
decltype(kernels::apply_map) apply_map;

// unmasked.h
decltype(kernels::unmasked_sums) unmasked_sums;
decltype(kernels::unmasked_forward) unmasked_forward;
decltype(kernels::unmasked_backward) unmasked_backward;

// balance.h
decltype(kernels::balance_update) balance_update;

// update.h
decltype(kernels::adamw) adamw;
decltype(kernels::muon_momentum) muon_momentum;
decltype(kernels::muon_apply) muon_apply;
decltype(kernels::packs_in_update) packs_in_update;
decltype(kernels::sum_of_squares) sum_of_squares;
decltype(kernels::first_non_finite) first_non_finite;

// linear.h
decltype(kernels::operand_layout) operand_layout;
decltype(kernels::pack) pack;
decltype(kernels::linear_forward) linear_forward;
decltype(kernels::linear_backward_input) linear_backward_input;
decltype(kernels::linear_backward_weight) linear_backward_weight;
decltype(kernels::grouped_linear_forward) grouped_linear_forward;
decltype(kernels::grouped_linear_backward_input) grouped_linear_backward_input;
decltype(kernels::grouped_linear_backward_weight) grouped_linear_backward_weight;
decltype(kernels::blockdiag_linear_forward) blockdiag_linear_forward;
decltype(kernels::blockdiag_linear_backward_input) blockdiag_linear_backward_input;
decltype(kernels::blockdiag_linear_backward_weight) blockdiag_linear_backward_weight;

// int8.h
decltype(kernels::round_to_int8) round_to_int8;

// newton_schulz.h
void orthogonalize(const Context& ctx, DType compute, std::span<const Tensor> stacks_GMN,
                   int steps);

// peak.h
decltype(kernels::measure_peak_flops) measure_peak_flops;
decltype(kernels::flop_within) flop_within;
decltype(kernels::bf16_is_faster) bf16_is_faster;

}  // namespace ashlar::kernels::cpu
