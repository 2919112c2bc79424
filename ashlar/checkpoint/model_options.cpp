#include "ashlar/checkpoint/model_options.h"

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"

namespace ashlar::checkpoint {

std::string model_options_json(const ModelSpec& spec) {
  return nlohmann::ordered_json{
      {"skip_output", spec.skip_output == SkipOutput::kZero ? "zero" : "identity"},
      {"head_fp32", spec.head_fp32},
      {"qk_norm_eps", spec.qk_norm_eps}}
      .dump(2);
}

std::vector<std::string> unstated_options(const ModelSpec& spec) {
  const ModelSpec assumed;
  std::vector<std::string> options;
  if (spec.skip_output != assumed.skip_output) options.push_back("moe.skip_output=identity");
  if (spec.head_fp32 != assumed.head_fp32) options.push_back("model.head_fp32=true");
  if (spec.qk_norm_eps != assumed.qk_norm_eps)
    options.push_back(fmt::format("model.qk_norm_eps={}", spec.qk_norm_eps));
  return options;
}

void read_model_options(const std::string& json, const std::string& what, ModelSpec& spec) {
  const Json parsed = parse_json(json, what, ErrorKind::kCorrupt);
  const auto member = [&](const char* key, auto is_right, const char* expected) -> const Json& {
    const auto found = parsed.is_object() ? parsed.find(key) : parsed.end();
    ASHLAR_REQUIRE(parsed.is_object() && found != parsed.end() && is_right(*found), kCorrupt,
                   "{}: {} is {}; expected {}", what, key,
                   parsed.is_object() && found != parsed.end() ? found->dump() : "missing",
                   expected);
    return *found;
  };
  const Json& skip = member(
      "skip_output", [](const Json& j) { return j == "zero" || j == "identity"; },
      "\"zero\" or \"identity\"");
  spec.skip_output = skip == "zero" ? SkipOutput::kZero : SkipOutput::kIdentity;
  spec.head_fp32 = member(
                       "head_fp32", [](const Json& j) { return j.is_boolean(); }, "true or false")
                       .get<bool>();
  spec.qk_norm_eps = member(
                         "qk_norm_eps", [](const Json& j) { return j.is_number() && j >= 0.0; },
                         "a number of at least 0")
                         .get<double>();
}

}  // namespace ashlar::checkpoint
