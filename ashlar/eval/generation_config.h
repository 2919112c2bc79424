// generation_config.json beside a model: how its makers generate text.
//
// Source  transformers 5.24, GenerationConfig: where the file is there, its eos_token_id alone says
//         what ends a text, and not config.json's; do_sample false, or absent, is greedy; a draw
//         that says nothing of top_k is among the 50 likeliest.
// Errors  kData, "PATH: MEMBER is VALUE; expected ...".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/eval/sampler.h"
#include "ashlar/models/companions.h"

namespace ashlar::eval {

struct GenerationConfig {
  std::string path;               // of the file; "": there is none
  std::vector<int32_t> stop_ids;  // inside the vocabulary
  SamplingSpec sampling;          // greedy, all tokens, where the file is silent
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;    // of prompt and new tokens together
  std::vector<std::string> unfollowed;  // "repetition_penalty 1.1": what generate does not do
};

GenerationConfig read_generation_config(const models::Companions& companions,
                                        const models::ModelSource& source);

}  // namespace ashlar::eval
