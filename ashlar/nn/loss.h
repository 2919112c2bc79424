// The head and its loss, computed over chunks of tokens, so that the logits of all tokens never
// exist at once.
//
//   logits = final W^T, W the head's weights
//   loss_t = cross entropy with target_t; -1 means no loss
//
// Shapes   final dfinal [T, H]; targets [T] I32; loss [T].
// Cost     2*T*V*H flop forward, 4*T*V*H more for the gradients.
#pragma once

#include "ashlar/nn/model.h"

namespace ashlar::nn {

// Fills loss.
void head_loss(const kernels::Context&, const Model&, const Tensor& final_TH,
               const Tensor& targets_T, const Tensor& loss_T);
// Fills loss and dfinal (the gradient of scale * sum of losses); adds to the gradient of the head's
// weights.
void head_loss_backward(const kernels::Context&, const Model&, const Tensor& final_TH,
                        const Tensor& targets_T, double scale, const Tensor& loss_T,
                        const Tensor& dfinal_TH);
// Fills logits [T, V], wide type, of the given rows; for scoring and sampling.
void head_logits(const kernels::Context&, const Model&, const Tensor& final_TH,
                 const Tensor& logits_TV);

}  // namespace ashlar::nn
