#include "ashlar/models/hf/config.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/models/hf/blocks.h"
#include "ashlar/models/hf/family.h"
#include "ashlar/models/hf/members.h"
#include "ashlar/spec/model_keys.h"

namespace ashlar::models {
namespace {

const HfFamily* const kFamilies[] = {&kHfZaya,     &kHfLlama,   &kHfMistral,
                                     &kHfQwen2,    &kHfQwen3,   &kHfMixtral,
                                     &kHfQwen3Moe, &kHfMiniMax, &kHfQwen3Next};

const HfFamily& family_in(const HfFields& fields) {
  std::vector<std::string> types;
  for (const HfFamily* family : kFamilies) {
    if (fields.has("model_type") && fields.at("model_type") == family->model_type) return *family;
    types.push_back(fmt::format("\"{}\"", family->model_type));
  }
  fields.fail("model_type", fmt::format("one of {}", fmt::join(types, ", ")));
}

const HfFamily* family_that_states(const ModelSpec& model) {
  for (const HfFamily* family : kFamilies)
    if (family->states(model)) return family;
  return nullptr;
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    default:
      return "float64";
  }
}

// -1: none
Json token(int64_t id) {
  return id < 0 ? Json(nullptr) : Json(id);
}

Json tokens(const std::vector<int64_t>& ids) {
  return ids.size() > 1 ? Json(ids) : token(ids.empty() ? -1 : ids[0]);
}

// Removes ids outside the vocabulary, which no text has; transformers accepts them too.  It refuses
// such an id of padding, as validate() does.
void pass_over_ids_outside(const std::string& source, HfConfig& config) {
  ModelSpec& model = config.model;
  const auto outside = [&](const char* key, int64_t id) {
    if (id < model.vocab_size) return false;
    config.notes.push_back(fmt::format("{}: {} {} is passed over: the vocabulary has {} ids",
                                       source, key, id, model.vocab_size));
    return true;
  };
  if (outside("bos_token_id", model.bos_token_id)) model.bos_token_id = -1;
  std::erase_if(model.eos_token_ids, [&](int64_t id) { return outside("eos_token_id", id); });
}

[[noreturn]] void fail_unstated(const ModelSpec& model) {
  constexpr const char* kStays = "it stays in checkpoints of Ashlar";
  const BlockSpec& first = model.blocks.at(0);
  if (const auto odd = HfBlocks(model).odd)
    ASHLAR_FAIL(kConfig,
                "no Hugging Face architecture has block {} of this model, {}, which differs from "
                "earlier blocks of its kind; expected blocks of a kind to be alike: {}",
                *odd, name_of(type_of(model.blocks[size_t(*odd)])), kStays);
  ASHLAR_FAIL(kConfig,
              "no Hugging Face architecture has a model of blocks such as {} with {} residuals; "
              "expected one of a single family: {}",
              name_of(type_of(first)), kResidualNames[size_t(first.residual)], kStays);
}

}  // namespace

std::string_view name_of(HfForm form) {
  constexpr std::string_view kNames[] = {"legacy 2025", "legacy 2026", "native"};
  return kNames[int(form)];
}

std::string_view name_of(HfLayout layout) {
  return layout == HfLayout::kNative ? "native" : "legacy";
}

HfConfig parse_hf_config(std::string_view text, const std::string& source) {
  const Json json = parse_python_json(text, source);
  const HfFields fields(json, source);
  const HfFamily& family = family_in(fields);
  HfConfig config = family.read(fields);
  config.not_followed = check_other_members(fields, family.model_type);
  config.family = family.architecture;
  config.names = family.names;
  config.sizes.push_back(
      {"model.embed_tokens.weight", 0, config.key_of("vocab_size"), config.model.vocab_size});
  config.sizes.push_back(
      {"model.embed_tokens.weight", 1, config.key_of("hidden_size"), config.model.hidden_size});
  pass_over_ids_outside(source, config);
  try {
    validate(config.model);
  } catch (const Error& error) {
    ASHLAR_FAIL(kData, "{}: {}", source, error.what());
  }
  return config;
}

bool has_hf_config(const ModelSpec& model) {
  return family_that_states(model) != nullptr;
}

HfNames names_of(const ModelSpec& model) {
  const HfFamily* family = family_that_states(model);
  return family ? family->names : HfNames{};
}

std::string to_hf_config(const ModelSpec& model, DType dtype, HfLayout layout) {
  const HfFamily* family = family_that_states(model);
  if (!family) fail_unstated(model);
  ASHLAR_REQUIRE(layout == HfLayout::kNative || family == &kHfZaya, kConfig,
                 "the legacy layout is one of ZAYA1; export {} in the native one",
                 family->architecture);
  Json json;
  family->write(model, layout, json);
  json["architectures"] = {family->architecture};
  json["model_type"] = family->model_type;
  json["dtype"] = torch_name(dtype);
  json["attention_dropout"] = 0.0;
  json["bos_token_id"] = token(model.bos_token_id);
  json["eos_token_id"] = tokens(model.eos_token_ids);
  json["hidden_size"] = model.hidden_size;
  json["max_position_embeddings"] = model.max_positions;
  json["pad_token_id"] = token(model.pad_token_id);
  json["tie_word_embeddings"] = model.tied_head;
  json["vocab_size"] = model.vocab_size;
  return json.dump(2) + "\n";
}

std::string to_hf_generation_config(const ModelSpec& model) {
  const Json json = {{"_from_model_config", true},
                     {"bos_token_id", token(model.bos_token_id)},
                     {"eos_token_id", tokens(model.eos_token_ids)},
                     {"pad_token_id", token(model.pad_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace ashlar::models
