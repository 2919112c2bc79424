// The kernels of a block, of the embedding and of the head, in closed form: a kernel takes
// flop / rate or bytes / bandwidth, whichever is longer.
//
// Bytes follow the headers of the kernels: every operand once.  An element of the stream has s
// bytes (2 with train.stream = "bf16", else 4), one of activations a bytes (2 in a bf16 run, else
// 4), one of the wide type 4.  Small vectors, such as weights of norms and biases, are left out.
#pragma once

#include "ashlar/sizing/machine_rates.h"
#include "ashlar/sizing/step_shape.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::sizing {

// The part of a block that a rank runs in one pass.
struct RankPass {
  double tokens = 0;    // of the rank
  double merged = 0;    // tokens of its norms and merges, fewer with parallel.sequence_parallel
  double rows = 0;      // sequences
  double sequence = 0;  // tokens of a whole sequence
  double cp = 1;        // ranks that share it
  double busiest = 1;   // pairs that the busiest of them sees, over the mean
  double tp = 1;        // ranks that share heads and widths
  double ep = 1;        // ranks that share the experts
  double stream_bytes = kStreamBytes;
};

struct BlockTime {
  double mixer_forward_s = 0, mixer_backward_s = 0;
  double feed_forward_s = 0, feed_backward_s = 0;
  double experts_forward_s = 0, experts_backward_s = 0;  // part of the two above
  double merges_forward_s = 0, merges_backward_s = 0;
  double recompute_s = 0;  // forward once more, as far as backward reads its results
  double forward_s() const { return mixer_forward_s + feed_forward_s + merges_forward_s; }
  double backward_s() const { return mixer_backward_s + feed_backward_s + merges_backward_s; }
};
BlockTime block_time(const BlockSpec& block, const BlockTuning& tuning, double hidden,
                     const RankPass& pass, bool bf16, const MachineRates& rates);

// Input: lookup and first norm.  Loss: last norm, logits and their gradients.
struct EndTime {
  double input_s = 0, input_backward_s = 0, loss_s = 0;
};
EndTime end_time(const ModelSpec& model, const ModelTuning& tuning, const RankPass& pass, bool bf16,
                 const MachineRates& rates);

// Flop of Newton-Schulz on a rows x cols matrix: steps (3 m^2 n + m^3), m <= n, with symmetric
// products, and steps (4 m^2 n + 2 m^3) without.
double newton_schulz_flop(double rows, double cols, double steps, bool symmetric = true);

}  // namespace ashlar::sizing
