#include "ashlar/cli/sampling_flags.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ashlar/eval/answer_text.h"

namespace ashlar::cli {

void add_sampling_flags(CLI::App& app, SamplingFlags& flags, int64_t usual_max_tokens) {
  app.add_option("--max-tokens", flags.max_tokens,
                 fmt::format("new tokens at most (default: max_new_tokens of the model's "
                             "generation_config.json, else {})",
                             usual_max_tokens));
  app.add_option("--temperature", flags.temperature,
                 "0: greedy (default: as that file says, else 0)");
  app.add_option("--top-k", flags.top_k,
                 "draw among the K likeliest; 0: all (default: as that file says, else 0)");
  app.add_option("--top-p", flags.top_p,
                 "draw among the likeliest that reach P together (default: as that file says, "
                 "else 1)");
  app.add_option("--min-p", flags.min_p,
                 "draw among those with at least P times the largest probability (default: as "
                 "that file says, else 0)");
  app.add_option("--repetition-penalty", flags.repetition_penalty,
                 "above 1: ids of the text so far are less likely (default: as that file says, "
                 "else 1)");
  app.add_option("--seed", flags.seed,
                 "draws are a function of seed, position and, of several prompts, the prompt's "
                 "index")
      ->capture_default_str();
  app.add_option("--stop", flags.stops, "text that ends an answer; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", flags.ignore_eos, "do not stop at an id that ends a text");
}

void check(const SamplingFlags& flags) {
  // Larger numbers are read as the largest.
  ASHLAR_REQUIRE(flags.seed >= 0 && flags.seed < INT64_MAX, kConfig,
                 "--seed is {}; expected 0 to {}", flags.seed, INT64_MAX - 1);
  const auto max_tokens = flags.max_tokens.value_or(1);
  ASHLAR_REQUIRE(max_tokens > 0 && max_tokens <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {}; expected 1 to {}", max_tokens, eval::kMaxTokens);
  eval::validate({.temperature = flags.temperature.value_or(0),
                  .top_k = flags.top_k.value_or(0),
                  .top_p = flags.top_p.value_or(1),
                  .min_p = flags.min_p.value_or(0),
                  .repetition_penalty = flags.repetition_penalty.value_or(1)});
}

eval::GenerateSpec spec_of(const SamplingFlags& flags, const eval::ModelTexts& texts,
                           int64_t num_prompt_ids, uint64_t number, int64_t usual_max_tokens) {
  const eval::GenerationConfig& config = texts.config;
  eval::GenerateSpec spec;
  spec.max_tokens = usual_max_tokens;
  if (config.max_length)
    spec.max_tokens =
        std::max<int64_t>(1, std::min(spec.max_tokens, *config.max_length - num_prompt_ids));
  spec.max_tokens = flags.max_tokens.value_or(config.max_new_tokens.value_or(spec.max_tokens));
  spec.sampling = config.sampling;
  eval::SamplingSpec& sampling = spec.sampling;
  sampling.temperature = flags.temperature.value_or(sampling.temperature);
  sampling.top_k = flags.top_k.value_or(sampling.top_k);
  sampling.top_p = flags.top_p.value_or(sampling.top_p);
  sampling.min_p = flags.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = flags.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = uint64_t(flags.seed);
  sampling.prompt = number;
  if (!flags.ignore_eos) spec.stop_ids = config.stop_ids;
  if (texts.tokenizer)
    for (const int32_t id : eval::ids_of_stops(flags.stops, *texts.tokenizer))
      spec.stop_ids.push_back(id);
  return spec;
}

void say_what_holds(const eval::GenerationConfig& config, const eval::GenerateSpec& spec,
                    Log& log) {
  if (config.path.empty()) return;
  const eval::SamplingSpec& sampling = spec.sampling;
  std::string how = "greedy";
  if (sampling.temperature > 0) {
    how = fmt::format("temperature {}", sampling.temperature);
    if (sampling.top_k > 0) how += fmt::format(", top-k {}", sampling.top_k);
    if (sampling.top_p < 1) how += fmt::format(", top-p {}", sampling.top_p);
    if (sampling.min_p > 0) how += fmt::format(", min-p {}", sampling.min_p);
  }
  if (sampling.repetition_penalty != 1)
    how += fmt::format(", repetition penalty {}", sampling.repetition_penalty);
  const std::string stops = spec.stop_ids.empty()
                                ? "nothing stops it"
                                : fmt::format("stops at {}", fmt::join(spec.stop_ids, ", "));
  log.info("{}, and flags: {}, at most {} tokens, {}", config.path, how, spec.max_tokens, stops);
  warn_of_unfollowed(config, log);
}

void warn_of_unfollowed(const eval::GenerationConfig& config, Log& log) {
  if (!config.unfollowed.empty())
    log.warn("{}: not followed: {}", config.path, fmt::join(config.unfollowed, ", "));
}

}  // namespace ashlar::cli
