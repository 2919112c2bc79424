// Closed formulas of a model: parameters, and flop per token.  They share no code with the model,
// so that tests can hold one against the other.  A kind of branch is one overload of parameters_of
// and one of flop_of in model.cpp.
//
// Source  ZAYA1, arXiv 2511.17127 and 2605.05365; shapes of the released checkpoints.
// Types   Parameter counts are exact integers; flop are doubles, exact below 2^53.
#pragma once

#include <cstdint>

#include "ashlar/spec/model_spec.h"

namespace ashlar {

// Trainable scalars of one branch.  Weights and biases of a map are counted together.
struct CcaParameters {
  int64_t q_proj = 0, k_proj = 0;
  int64_t v_proj = 0;  // v_proj_current, and v_proj_delayed again
  int64_t conv_depthwise = 0, conv_grouped = 0, temp = 0, o_proj = 0;
  int64_t total = 0;  // the sum, with both v_proj
};
// Of a linear router out and router alone.
struct MoeParameters {
  int64_t router_down = 0, router_norm = 0;
  int64_t router_fc = 0;  // fc1, and fc2 again
  int64_t router_out = 0;
  int64_t router = 0;               // the sum, without router_scale
  int64_t router_scale = 0;         // depth averaging; every mixture but the first has it
  int64_t expert = 0, experts = 0;  // one; all of a block
  int64_t shared = 0;               // the shared expert with its gate
  int64_t buffers = 0;              // balancing biases; not trained, in no sum
};
CcaParameters cca_parameters(const CcaSpec& spec, int64_t hidden_size);
MoeParameters moe_parameters(const MoeSpec& spec, int64_t hidden_size);

struct ModelParameters {
  int64_t blocks = 0;            // all, with their norms and residual scaling
  int64_t norms = 0;             // of all blocks
  int64_t residual_scaling = 0;  // of all blocks
  int64_t embedding = 0;
  int64_t head = 0;   // 0 where it is the embedding
  int64_t other = 0;  // input scaling and final norm
  int64_t total = 0;
  int64_t without_embedding = 0;  // nor head
  int64_t active = 0;             // of one token, without embedding and head
  int64_t buffers = 0;            // balancing biases; not trained, not in total
};
ModelParameters model_parameters(const ModelSpec& model);

// Flop per token of a sequence of `sequence_length` tokens; a multiply-add counts 2.  Products and
// convolutions only.  A token reads the causal average of keys, and in a block with a window W
// (which counts the token itself) the average over the sequence of min(t + 1, W), t = 0, 1, ...
// Documents packed into one row are not taken apart: such a row costs less than this.
struct ModelFlop {
  double blocks = 0;     // products and convolutions of all blocks, without attention scores
  double head = 0;       // 2 V H
  double attention = 0;  // scores and weighted values
  double forward = 0;    // the sum
  double training = 0;   // 3 forward; recomputation is not counted
};
ModelFlop model_flop(const ModelSpec& model, int64_t sequence_length);

}  // namespace ashlar
