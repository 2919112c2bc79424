// model.json of a step, as it is written now and as version 0.1.0 wrote it.
#include "ashlar/models/step_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/models/hf/config.h"
#include "ashlar/spec/model_keys.h"
#include "tests/support/errors.h"

namespace ashlar::models {
namespace {

using nlohmann::json;

ModelKeys zaya() {
  ModelKeys s;
  s.vocab_size = 320, s.hidden_size = 32, s.num_hidden_layers = 2, s.num_attention_heads = 4;
  s.num_key_value_heads = 2, s.head_dim = 8, s.num_experts = 4, s.moe_intermediate_size = 48;
  s.router_hidden_size = 16, s.layer_types = {LayerType::kHybrid, LayerType::kHybrid};
  return s;
}

ModelSpec parse_model(const json& model_json) {
  return parse_step_model(to_hf_config(model_of(zaya()), DType::kF32, HfLayout::kNative),
                          model_json.dump(), "step");
}

TEST(StepModel, IsTheOneThatWasWritten) {
  const ModelSpec model = model_of(zaya());
  EXPECT_EQ(parse_model(json::parse(to_json(model))), model);
}

TEST(StepModel, SizesThatDoNotFitAreDamage) {
  const json good = json::parse(to_json(model_of(zaya())));
  const auto message = [](const json& bad) {
    return testing_support::message_of(ErrorKind::kCorrupt, [&] { parse_model(bad); });
  };
  json bad = good;
  for (json& block : bad["blocks"]) block["mixer"]["num_query_heads"] = 3;
  EXPECT_TRUE(message(bad).starts_with(
      "step/extra/model.json: num_attention_heads is 3 but num_key_value_heads is 2"))
      << message(bad);
  bad = good;
  for (json& block : bad["blocks"]) block["mixer"]["head_dim"] = INT32_MAX;
  EXPECT_TRUE(message(bad).starts_with("step/extra/model.json: head_dim is 2147483647"))
      << message(bad);
  bad = good;
  bad["blocks"][1]["feed_forward"]["router_width"] = 8;
  EXPECT_TRUE(message(bad).starts_with("step/extra/model.json: router_hidden_size is 8 in block 1"))
      << message(bad);
}

}  // namespace
}  // namespace ashlar::models
