#include "ashlar/models/step_model.h"

#include "ashlar/core/fields.h"
#include "ashlar/core/files.h"
#include "ashlar/models/hf/blocks.h"
#include "ashlar/models/hf/config.h"
#include "ashlar/models/hf/names.h"

namespace ashlar::models {
namespace {

// Reads the three choices that steps of 0.1.0 have in model.json.
void read_choices(const Fields& fields, ModelSpec& model) {
  const std::string& skip = fields.text("skip_output");
  if (skip != "zero" && skip != "identity")
    fields.fail("skip_output is \"{}\"; expected \"zero\" or \"identity\"", skip);
  change_each<MoeSpec>(model, [&](MoeSpec& moe) {
    if (auto* router = std::get_if<MlpRouterSpec>(&moe.router))
      router->skip_output = skip == "zero" ? SkipOutput::kZero : SkipOutput::kIdentity;
  });
  model.head_fp32 = fields.boolean("head_fp32");
  const double eps = fields.number("qk_norm_eps");
  if (!(eps >= 0.0)) fields.fail("qk_norm_eps is {}; expected a number of at least 0", eps);
  change_each<CcaSpec>(model, [&](CcaSpec& mixer) { mixer.qk_norm_eps = eps; });
}

// Returns the model, whose sizes must fit each other as in a recipe or a config.json.
ModelSpec checked(ModelSpec model, const std::string& place) {
  try {
    validate(model);
  } catch (const Error& error) {
    ASHLAR_FAIL(kCorrupt, "{}: {}", place, error.what());
  }
  return model;
}

}  // namespace

void describe_model(const ModelSpec& model, checkpoint::SaveRequest& request) {
  if (has_hf_config(model))
    request.extra.push_back(
        {kConfigFile, to_hf_config(model, DType::kF32, HfLayout::kNative), true});
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
  if (!model_json) return of_config();
  const Json parsed = parse_json(*model_json, place, ErrorKind::kCorrupt);
  const Fields fields(parsed, place);
  if (fields.has("blocks")) return checked(parse_model_spec(*model_json, place), place);
  ModelSpec model = of_config();
  read_choices(fields, model);
  return model;
}

ModelSpec model_of_step(const checkpoint::StepReader& step) {
  const auto blob = [&](const char* name) {
    return step.has_blob(name) ? std::optional(step.read_blob(name)) : std::nullopt;
  };
  return parse_step_model(blob(kConfigFile), blob(kModelFile), step.directory());
}

std::vector<std::string> unstated_options(const ModelSpec& model) {
  const HfBlocks blocks(model);
  const auto* router = blocks.moe ? std::get_if<MlpRouterSpec>(&blocks.moe->router) : nullptr;
  const CcaSpec* cca = blocks.cca.any();
  std::vector<std::string> options;
  if (router && router->skip_output != MlpRouterSpec{}.skip_output)
    options.push_back("moe.skip_output=identity");
  if (model.head_fp32) options.push_back("model.head_fp32=true");
  if (cca && cca->qk_norm_eps != CcaSpec{}.qk_norm_eps)
    options.push_back(fmt::format("model.qk_norm_eps={}", cca->qk_norm_eps));
  return options;
}

}  // namespace ashlar::models
