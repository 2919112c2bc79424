// Scores given tokens with a model: losses, log-probabilities, the likeliest token, the chosen
// experts.
#pragma once

#include <string>
#include <vector>

#include "ashlar/nn/model.h"

namespace ashlar::eval {

struct Scores {
  double loss = 0.0;             // the mean of -logprobs
  std::vector<double> logprobs;  // of ids[t + 1] given ids[0..t], t = 0..n-2
  std::vector<int32_t> argmax;   // after each of the n tokens
  // The experts chosen, by block with experts and by token, in ascending order; num_experts: none.
  std::vector<std::vector<std::vector<int32_t>>> experts;
  OwnedTensor logits;  // [n, V], F32 (F64 in the fp64 run), in the memory of the device
};
// The bytes of the logits, in memory of the host.
std::string logits_bytes(const Scores& scores);

// Runs one forward pass over the ids as one document; they must be in the vocabulary (check_ids).
// kConfig for fewer than two; kNumeric for logits that are not finite.  Memory: tokens x vocabulary
// logits, which are the result.  On meta it only counts.
Scores score(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
             std::span<const int32_t> ids);

}  // namespace ashlar::eval
