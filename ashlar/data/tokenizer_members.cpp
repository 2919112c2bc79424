#include "ashlar/data/tokenizer_members.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ashlar/core/text.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kHarmless[] = {
    // followed (text_files.cpp)
    "add_bos_token", "bos_token", "added_tokens_decoder",
    // which class of transformers reads the files, where they were, who wrote them
    "tokenizer_class", "backend", "processor_class", "auto_map", "name_or_path", "_name_or_path",
    "tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file", "is_local",
    "local_files_only", "init_inputs", "use_fast", "from_slow", "trust_remote_code",
    "transformers_version", "_commit_hash",
    // batches of transformers: lengths, padding, what it returns
    "model_max_length", "max_length", "stride", "truncation_side", "truncation_strategy", "padding",
    "padding_side", "pad_to_multiple_of", "pad_token_type_id", "model_input_names",
    "return_token_type_ids",
    // names of tokens, whose ids are in config.json and generation_config.json
    "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
    "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens",
    // chats: the template accompanies the model, and its users apply it
    "chat_template", "response_schema", "use_default_system_prompt",
    // spaces around added tokens in decoding, and its treatment of invalid bytes, which are as here
    "spaces_between_special_tokens", "errors"};

struct Neutral {
  std::string_view name;
  bool value;  // that changes nothing; null never does
};
constexpr Neutral kNeutral[] = {
    {"add_eos_token", false},                 // an end behind every text
    {"add_prefix_space", true},               // as tokenizer.model has it
    {"clean_up_tokenization_spaces", false},  // decoding drops spaces before punctuation
    {"split_special_tokens", true},           // "<s>" in a text is three characters
    {"legacy", false},                        // a space more behind added tokens
    {"do_lower_case", false},
    {"keep_accents", true},
    {"fix_mistral_regex", false},
};

bool changes_nothing(std::string_view name, const Json& value) {
  if (value.is_null() || std::ranges::find(kHarmless, name) != std::end(kHarmless)) return true;
  const auto* known = std::ranges::find(kNeutral, name, &Neutral::name);
  if (known != std::end(kNeutral)) return value == known->value;
  return (value.is_object() || value.is_array()) && value.empty();  // sp_model_kwargs {}
}

}  // namespace

std::vector<std::string> unfollowed_members(const Json& tokenizer_config) {
  std::vector<std::string> unfollowed;
  for (const auto& [name, value] : tokenizer_config.items())
    if (!changes_nothing(name, value))
      unfollowed.push_back(printable(fmt::format("{} {}", name, shown(value))));
  return unfollowed;
}

}  // namespace ashlar::data
