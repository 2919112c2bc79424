// generation_config.json beside a model: its authors' settings for generating text.
//
// Source  transformers 5.24, GenerationConfig: if the file exists, its eos_token_id alone decides
//         what ends a text, and config.json's does not count; do_sample false or absent means
//         greedy; sampling without a top_k draws from the 50 likeliest; a repetition_penalty
//         counts in both.
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
  std::vector<int32_t> stop_ids;  // those in the vocabulary
  SamplingSpec sampling;          // where the file is silent: greedy, all tokens
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;    // of prompt and new tokens together
  std::vector<std::string> unfollowed;  // settings not supported: "num_beams 4"
};

GenerationConfig read_generation_config(const models::Companions& companions,
                                        const models::ModelSource& source);

}  // namespace ashlar::eval
