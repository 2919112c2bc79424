#include "ashlar/models/step_model.h"

#include "ashlar/core/fields.h"
#include "ashlar/core/files.h"
#include "ashlar/models/hf/config.h"
#include "ashlar/models/hf/names.h"

namespace ashlar::models {
namespace {

// The three choices, as steps of 0.1.0 have them.
void read_choices(const Fields& fields, ModelKeys& spec) {
  const std::string& skip = fields.text("skip_output");
  if (skip != "zero" && skip != "identity")
    fields.fail("skip_output is \"{}\"; expected \"zero\" or \"identity\"", skip);
  spec.skip_output = skip == "zero" ? SkipOutput::kZero : SkipOutput::kIdentity;
  spec.head_fp32 = fields.boolean("head_fp32");
  spec.qk_norm_eps = fields.number("qk_norm_eps");
  if (!(spec.qk_norm_eps >= 0.0))
    fields.fail("qk_norm_eps is {}; expected a number of at least 0", spec.qk_norm_eps);
}

// Sizes that fit each other, as those of a recipe or a config.json do.
ModelSpec checked(ModelSpec model, const std::string& place) {
  try {
    validate(keys_of(model), "");
  } catch (const Error& error) {
    ASHLAR_FAIL(kCorrupt, "{}: {}", place, error.what());
  }
  return model;
}

}  // namespace

void describe_model(const ModelSpec& model, checkpoint::SaveRequest& request) {
  const ModelKeys keys = keys_of(model);
  if (has_hf_config(keys))
    request.extra.push_back(
        {kConfigFile, to_hf_config(keys, DType::kF32, HfLayout::kNative), true});
  request.extra.push_back({kModelFile, to_json(model), true});
  if (model.tied_head) request.aliases.emplace(kHfHead, kHfEmbedding);
}

ModelSpec parse_step_model(const std::optional<std::string>& config_json,
                           const std::optional<std::string>& model_json,
                           const std::string& directory) {
  const std::string config = join(directory, std::string("extra/") + kConfigFile);
  const std::string place = join(directory, std::string("extra/") + kModelFile);
  const auto of_config = [&] {
    ASHLAR_REQUIRE(config_json, kCorrupt, "{}: not there; expected what describes the model",
                   config);
    return parse_hf_config(*config_json, config).model;
  };
  if (!model_json) return model_of(of_config());
  const Json parsed = parse_json(*model_json, place, ErrorKind::kCorrupt);
  const Fields fields(parsed, place);
  if (fields.has("blocks")) return checked(parse_model_spec(*model_json, place), place);
  ModelKeys spec = of_config();
  read_choices(fields, spec);
  return model_of(spec);
}

ModelSpec model_of_step(const checkpoint::StepReader& step) {
  const auto blob = [&](const char* name) {
    return step.has_blob(name) ? std::optional(step.read_blob(name)) : std::nullopt;
  };
  return parse_step_model(blob(kConfigFile), blob(kModelFile), step.directory());
}

std::vector<std::string> unstated_options(const ModelSpec& model) {
  const ModelKeys spec = keys_of(model), assumed;
  std::vector<std::string> options;
  if (spec.skip_output != assumed.skip_output) options.push_back("moe.skip_output=identity");
  if (spec.head_fp32 != assumed.head_fp32) options.push_back("model.head_fp32=true");
  if (spec.qk_norm_eps != assumed.qk_norm_eps)
    options.push_back(fmt::format("model.qk_norm_eps={}", spec.qk_norm_eps));
  return options;
}

}  // namespace ashlar::models
