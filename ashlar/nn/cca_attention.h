// Compressed Convolutional Attention: down projections, two stacked causal convolutions on queries
// and keys, QK mean, QK norm with temperature, partial RoPE, a value half delayed by one token,
// causal GQA, output projection.
//
// Source   arXiv 2510.04476 (CCA), 2511.17127 (ZAYA1) and its release.
// Shapes   a [T, H] normed input, o [T, H]; letters as in kernels/qk.h.
// Cost     per token 2[H(N D + 2 K D) + N D H + 2C + 2C D] flop forward besides
//          attention_forward's.
#pragma once

#include <string_view>

#include "ashlar/nn/exchange.h"
#include "ashlar/nn/parameters.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

struct AttentionWeights {
  Tensor qkv;               // [N D + 2 K D, H]: q | k | v current | v delayed, one product
  Tensor conv0_w, conv0_b;  // [C, 1, 2], [C]
  Tensor conv1_w, conv1_b;  // [C, D, 2], [C]
  Tensor temp;              // [K]
  Tensor o_proj;            // [H, N D]

  void take(Arena& arena, const ModelSpec& spec, DType dtype, Part part);
  void for_each(const ModelSpec& spec, const std::string& prefix, Visitor visit) const;
};

// The grouped convolution's weight [C, D, 2] as one matrix [D, 2D] per head.
Tensor grouped_conv_matrices(const ModelSpec& spec, const Tensor& conv1_w);

struct AttentionOperands {
  kernels::Operand qkv, conv1, o_proj;
};

struct AttentionSaved {
  Tensor qkv;   // [T, N D + 2 K D] stream: q | k | vc | vd
  Tensor y_TC;  // grouped convolution without bias
  Tensor halo_z, halo_vd;
  Tensor q_sum;          // [T, K D] stream: see KeySharing; absent where nobody shares
  Tensor qhat, khat, v;  // activation type
  Tensor n_q, n_k;       // norms before scaling
  Tensor att, lse;       // [T, N D], [T, N]

  static AttentionSaved make(Arena& arena, const ModelSpec& spec, const Types& types,
                             int64_t num_tokens, int64_t num_halos);
};

// Ranks that hold the same key heads with other query heads (more tensor-parallel ranks than key
// heads).  Each computes the keys and values for itself; the mean over a key's queries and the
// gradients of keys and values are summed, so that they are the same bits on all of them.
class KeySharing {
 public:
  virtual ~KeySharing() = default;
  virtual void sum(const Tensor& data, std::string_view label) = 0;  // in place
  virtual bool first() const = 0;  // the one whose input gradient counts that of keys and values
};

struct AttentionCall {  // what one call needs besides weights and activations
  const ModelSpec& spec;
  const Types& types;
  int64_t layer;
  const kernels::Sequence& sequence;
  SequenceExchange& exchange;
  Tensor rope;  // [positions, rho]
  // Gradients that are matrix products (ParameterInfo::product) are added to, or overwritten: then
  // backward does not read what was there.  All others are always added to.
  bool accumulate = true;
  KeySharing* sharing = nullptr;  // null: nobody shares
};

void attention_forward(const kernels::Context&, const AttentionCall&, const AttentionWeights&,
                       const AttentionOperands&, const AttentionSaved&, const Tensor& a_TH,
                       const Tensor& o_TH);
// Adds to gradients (see AttentionCall::accumulate); overwrites da.
void attention_backward(const kernels::Context&, const AttentionCall&, const AttentionWeights&,
                        const AttentionOperands&, const AttentionSaved&, const Tensor& a_TH,
                        const Tensor& do_TH, const AttentionWeights& gradients,
                        const Tensor& da_TH);

}  // namespace ashlar::nn
