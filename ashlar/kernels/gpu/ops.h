// The functions of kernels/ops.h that GPUs implement so far, with the same meaning and arguments,
// over tensors in the memory of the device.  They hold for a type F64 only where they say so.
#pragma once

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/cross_entropy.h"
#include "ashlar/kernels/embedding.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/moe.h"
#include "ashlar/kernels/norm.h"
#include "ashlar/kernels/rope.h"
#include "ashlar/kernels/update.h"

namespace ashlar::kernels::gpu {

// copy.h, F64 included
void copy(const Context& ctx, const Matrix& from, const Matrix& to);
void add(const Context& ctx, const Matrix& from, const Matrix& to);
void fill(const Context& ctx, const Matrix& to, double value);
void upload(const Context& ctx, std::span<const int32_t> from, const Tensor& to);
void upload(const Context& ctx, std::span<const double> from, const Tensor& to);
void download(const Context& ctx, const Tensor& from, std::span<int32_t> to);
void download(const Context& ctx, const Tensor& from, std::span<int64_t> to);
void download(const Context& ctx, const Tensor& from, std::span<double> to);

// embedding.h.  Whoever loads a batch checks its ids.
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;

// attention.h
decltype(kernels::attention_forward) attention_forward;
decltype(kernels::attention_backward) attention_backward;

// norm.h
decltype(kernels::rms_norm_forward) rms_norm_forward;
decltype(kernels::rms_norm_backward) rms_norm_backward;
decltype(kernels::merge_norm_forward) merge_norm_forward;
decltype(kernels::merge_norm_backward) merge_norm_backward;

// rope.h
decltype(kernels::rope_table) rope_table;
decltype(kernels::heads_forward) heads_forward;
decltype(kernels::heads_backward) heads_backward;

// cross_entropy.h.  Whoever loads a batch checks its targets.
decltype(kernels::cross_entropy) cross_entropy;

// moe.h
decltype(kernels::swiglu_forward) swiglu_forward;
decltype(kernels::swiglu_backward) swiglu_backward;

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

}  // namespace ashlar::kernels::gpu
