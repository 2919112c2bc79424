// Scores of the tokens of a text: log-probabilities under a model, and the likeliest tokens.
//
// Numerics  log-softmax of F32 logits, with sums in fp64; ties go to the lowest id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::eval {

struct TokenScore {
  struct Likely {
    int32_t id;
    double logprob;
  };
  int32_t id = -1;
  double logprob = 0.0;             // of the id, given all ids before it
  bool is_likeliest = false;        // the id is what greedy decoding takes
  std::vector<Likely> likely = {};  // the num_likely likeliest ids, the first largest
};

struct TokenScores {
  int64_t num_likely = 0;
  bool of_prompt = false;               // the tokens of the prompt after the first, too
  std::vector<TokenScore> tokens = {};  // in the order of the text

  // Adds the score of an id under the logits [V] after the ids before it.
  void add(std::span<const float> logits, int32_t id);
};

}  // namespace ashlar::eval
