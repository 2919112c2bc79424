// Closed formulas of a model's parameters and its flop per token.  They share no code with the
// model, so that tests can compare the two.  A kind of branch has one overload of parameters_of and
// one of flop_of in model.cpp.
//
// Source  ZAYA1, arXiv 2511.17127 and 2605.05365; shapes of the released checkpoints.
// Types   Parameter counts are exact integers; flop are doubles, exact below 2^53.
#pragma once

#include <cstdint>

#include "ashlar/spec/model_spec.h"

namespace ashlar {

// The trainable scalars of one branch.  Weights and biases of a map are counted together.
struct CcaParameters {
  int64_t q_proj = 0, k_proj = 0;
  int64_t v_proj = 0;  // of v_proj_current; v_proj_delayed has as many
  int64_t conv_depthwise = 0, conv_grouped = 0, temp = 0, o_proj = 0;
  int64_t total = 0;  // the sum, with v_proj twice
};
// A linear router has only out and router.
struct MoeParameters {
  int64_t router_down = 0, router_norm = 0;
  int64_t router_fc = 0;  // of fc1; fc2 has as many
  int64_t router_out = 0;
  int64_t router = 0;               // the sum, without router_scale
  int64_t router_scale = 0;         // depth averaging, of every mixture except the first
  int64_t expert = 0, experts = 0;  // one; all of a block
  int64_t shared = 0;               // the shared expert with its gate
  int64_t buffers = 0;              // balancing biases, which are not trained and in no sum
};
CcaParameters cca_parameters(const CcaSpec& spec, int64_t hidden_size);
MoeParameters moe_parameters(const MoeSpec& spec, int64_t hidden_size);

struct ModelParameters {
  int64_t blocks = 0;            // of all blocks, with their norms and residual scaling
  int64_t norms = 0;             // of all blocks
  int64_t residual_scaling = 0;  // of all blocks
  int64_t embedding = 0;
  int64_t head = 0;   // 0 where it is the embedding
  int64_t other = 0;  // input scaling and final norm
  int64_t total = 0;
  int64_t without_embedding = 0;  // and without head
  int64_t active = 0;             // of one token, without embedding and head
  int64_t buffers = 0;            // balancing biases, which are not trained and not in total
};
ModelParameters model_parameters(const ModelSpec& model);

// Flop per token of a sequence of `sequence_length` tokens; a multiply-add counts 2.  Products and
// convolutions only.  A token reads the causal average of keys, and in a block with a window W
// (which counts the token itself) the average over the sequence of min(t + 1, W), t = 0, 1, ...
// The formulas ignore documents inside a row: a row of several costs less than this.
struct ModelFlop {
  double blocks = 0;     // products and convolutions of all blocks, without attention scores
  double head = 0;       // 2 V H
  double attention = 0;  // scores and weighted values
  double forward = 0;    // the sum
  double training = 0;   // 3 forward; recomputation is not counted
};
ModelFlop model_flop(const ModelSpec& model, int64_t sequence_length);

}  // namespace ashlar
