#include "ashlar/eval/generation_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ashlar/core/fields.h"
#include "ashlar/models/hf/files.h"

namespace ashlar::eval {
namespace {

constexpr int64_t kUsualTopK = 50;  // default of transformers for sampling

// Settings that are followed, here or, for ids, from config.json.
constexpr std::array<std::string_view, 11> kFollowed = {
    "do_sample",    "temperature",        "top_k",          "top_p",
    "min_p",        "repetition_penalty", "max_new_tokens", "max_length",
    "eos_token_id", "bos_token_id",       "pad_token_id"};

// Settings that change no token of a single text:
constexpr std::array<std::string_view, 31> kHarmless = {
    // who wrote the file
    "_from_model_config", "transformers_version", "_commit_hash", "_original_object_hash",
    // memory and speed of transformers
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config",
    "disable_compile", "prefill_chunk_size", "low_memory", "max_window_size",
    "continuous_batching_config", "max_time",
    // results of its function beside the text
    "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate",
    // beams alone read these; num_beams itself is judged below
    "early_stopping", "length_penalty",
    // drafts of a second model, which it verifies
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "assistant_early_exit", "assistant_lookbehind", "target_lookbehind"};

// Settings that change nothing at this value, or at null.
bool is_neutral(std::string_view name, const Json& value) {
  if (value.is_null() || value == false) return true;
  if (name == "num_beams" || name == "num_beam_groups" || name == "num_return_sequences" ||
      name == "encoder_repetition_penalty" || name == "typical_p" || name == "guidance_scale")
    return value == 1;
  if (name == "renormalize_logits") return true;  // the draw divides by the sum anyway
  return value == 0 ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

template <size_t kCount>
bool has(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class Reader {
 public:
  Reader(const Json& json, const std::string& path, int64_t vocab_size)
      : json_(json), fields_(json, path, ErrorKind::kData), vocab_size_(vocab_size) {
    config_.path = path;
  }

  GenerationConfig read() {
    read_stop_ids();
    read_sampling();
    config_.max_new_tokens = integer("max_new_tokens");
    config_.max_length = integer("max_length");
    for (const auto& [name, value] : json_.items())
      if (!has(kFollowed, name) && !has(kHarmless, name) && !is_neutral(name, value))
        config_.unfollowed.push_back(printable(fmt::format("{} {}", name, shown(value))));
    return std::move(config_);
  }

 private:
  bool stated(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }

  void read_stop_ids() {
    if (!stated("eos_token_id")) return;
    const Json& value = json_.at("eos_token_id");
    for (const Json& each : value.is_array() ? value : Json::array({value})) {
      const auto id = integer_of(each);
      if (!id)
        fields_.fail("eos_token_id is {}; expected the id of a token, or a list of such ids",
                     shown(value));
      if (*id < 0 || *id >= vocab_size_)
        config_.unfollowed.push_back(
            fmt::format("eos_token_id {}, of a vocabulary of {} ids", *id, vocab_size_));
      else if (std::ranges::find(config_.stop_ids, *id) == config_.stop_ids.end())
        config_.stop_ids.push_back(int32_t(*id));
    }
  }

  void read_sampling() {
    SamplingSpec& sampling = config_.sampling;
    const bool draws = stated("do_sample") && fields_.boolean("do_sample");
    sampling.temperature = !draws ? 0.0 : stated("temperature") ? number("temperature") : 1.0;
    sampling.top_k = stated("top_k") ? *integer("top_k") : draws ? kUsualTopK : 0;
    if (sampling.temperature < 0) refuse("temperature", "0 or more");
    const double top_p = stated("top_p") ? number("top_p") : 1.0;
    if (top_p < 0) refuse("top_p", "0 or more");
    if (top_p == 0) sampling.top_k = 1;  // the likeliest alone
    sampling.top_p = top_p == 0 ? 1.0 : std::min(top_p, 1.0);
    if (stated("min_p")) sampling.min_p = number("min_p");
    if (sampling.min_p < 0 || sampling.min_p > 1) refuse("min_p", "0 to 1");
    if (stated("repetition_penalty")) sampling.repetition_penalty = number("repetition_penalty");
    if (sampling.repetition_penalty <= 0) refuse("repetition_penalty", "a number above 0");
  }

  double number(const char* name) const {
    if (!json_.at(name).is_number()) refuse(name, "a number");
    return json_.at(name).get<double>();
  }
  std::optional<int64_t> integer(const char* name) const {
    if (!stated(name)) return std::nullopt;
    return fields_.integer(name, 0, INT32_MAX);
  }
  [[noreturn]] void refuse(const char* name, const char* expected) const {
    fields_.fail("{} is {}; expected {}", name, shown(json_.at(name)), expected);
  }

  const Json& json_;
  Fields fields_;
  int64_t vocab_size_;
  GenerationConfig config_;
};

}  // namespace

GenerationConfig read_generation_config(const models::Companions& companions,
                                        const models::ModelSource& source) {
  const std::string name(models::kHfGenerationFile);
  const auto file = companions.files.find(name);
  if (file != companions.files.end()) {
    const std::string path = join(models::place_of_companions(source), name);
    const Json json = parse_json(file->second, path, ErrorKind::kData);
    return Reader(json, path, source.spec.vocab_size).read();
  }
  GenerationConfig config;
  config.stop_ids.assign(source.spec.eos_token_ids.begin(), source.spec.eos_token_ids.end());
  return config;
}

}  // namespace ashlar::eval
