// Picks the next token from logits.
//
//   temperature 0 is greedy, with the lowest id on ties.  Otherwise it takes logits / temperature,
//   the top_k largest, of these the smallest set whose probability reaches top_p, and one draw,
//   which is a function of (seed, prompt, position).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::eval {

struct SamplingSpec {
  double temperature = 0.0;
  int64_t top_k = 0;  // 0: all
  double top_p = 1.0;
  uint64_t seed = 1;
  uint64_t prompt = 0;  // the number of the prompt where several are given, below 2^32
};

// kConfig for temperature < 0, top_k < 0, top_p outside (0, 1].
void validate(const SamplingSpec& spec);

int32_t argmax(std::span<const float> logits);
// position is below 2^32.  `scratch` keeps memory between calls.
int32_t sample(const SamplingSpec& spec, std::span<const float> logits, int64_t position,
               std::vector<std::pair<float, int32_t>>& scratch);

}  // namespace ashlar::eval
