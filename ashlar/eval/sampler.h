// Picks the next token from logits.
//
//   temperature 0 is greedy, with the lowest id on ties.  Otherwise it takes logits / temperature,
//   the top_k largest, of these the smallest set whose probability reaches top_p, of these the
//   ones that have at least min_p of the largest probability, and one draw, which is a function of
//   (seed, prompt, position).
//
//   A repetition penalty p divides the logits above 0 of ids that the text has, and multiplies
//   those below 0, before all else (arXiv 1909.05858, section 4.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::eval {

struct SamplingSpec {
  double temperature = 0.0;
  int64_t top_k = 0;  // 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;  // 1: none
  uint64_t seed = 1;
  uint64_t prompt = 0;  // the number of the prompt where several are given, below 2^32
};

// kConfig for temperature < 0, top_k < 0, top_p outside (0, 1], min_p outside [0, 1],
// repetition_penalty <= 0.
void validate(const SamplingSpec& spec);

int32_t argmax(std::span<const float> logits);

// The ids that a text has so far, which its repetition penalty makes less likely.
class Repetition {
 public:
  Repetition(double penalty, std::span<const int32_t> ids);
  void add(int32_t id);
  // `logits`, or a copy in `scratch` under the penalty.
  std::span<const float> penalized(std::span<const float> logits,
                                   std::vector<float>& scratch) const;

 private:
  double penalty_;
  std::vector<int32_t> ids_;  // ascending, each once; empty without a penalty
};

// position is below 2^32.  The penalty is not applied here.  `scratch` keeps memory between calls.
int32_t sample(const SamplingSpec& spec, std::span<const float> logits, int64_t position,
               std::vector<std::pair<float, int32_t>>& scratch);

}  // namespace ashlar::eval
