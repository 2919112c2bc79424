// The flags of commands that generate text, and the settings that follow from them and from the
// model's generation_config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/cli/command.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/model_texts.h"

namespace ashlar::cli {

struct SamplingFlags {
  std::optional<int64_t> max_tokens, top_k;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  int64_t seed = int64_t(eval::SamplingSpec{}.seed);
  bool ignore_eos = false;
  std::vector<std::string> stops;  // strings
};

void add_sampling_flags(CLI::App& app, SamplingFlags& flags, int64_t usual_max_tokens);
void check(const SamplingFlags& flags);  // kConfig
// The settings of one prompt.  number: of the prompt, where several are given.
eval::GenerateSpec spec_of(const SamplingFlags& flags, const eval::ModelTexts& texts,
                           int64_t num_prompt_ids, uint64_t number, int64_t usual_max_tokens);
// Tells which settings hold, if the model's files state any.
void say_what_holds(const eval::GenerationConfig& config, const eval::GenerateSpec& spec, Log& log);
void warn_of_unfollowed(const eval::GenerationConfig& config, Log& log);

}  // namespace ashlar::cli
