// Softmax cross entropy over a chunk of logits, forward and gradient in one pass.
//
//   loss_t = logsumexp(logits_t) - logits_t[target_t]
//   dlogits_t = (softmax(logits_t) - onehot) * scale
//
// The model walks over chunks of tokens (products of linear.h make the logits of one chunk), so
// that the logits of all tokens never exist at once.
// Shapes   t tokens of the chunk, V classes.  logits [t, V]; targets [t] I32, -1: no loss, zero
//          gradient; loss [t].
// Types    logits, loss: F32 or F64; dlogits: BF16, F32 or F64, and may share memory with logits
//          when the types agree.
// Cost     about 6*t*V flop; logits read twice, dlogits written once.
// Limits   targets are in [-1, V): a caller that read them from a file has checked them.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct CrossEntropy {
  Tensor logits_tV, targets_t;
  double scale = 1.0;
  Tensor loss_t;           // filled
  Tensor dlogits_tV = {};  // filled; absent: loss only
};
void cross_entropy(const Context&, const CrossEntropy&);

// The most tokens of a chunk, for V classes.
int64_t most_logits_rows(const Context&, int64_t num_classes);

}  // namespace ashlar::kernels
