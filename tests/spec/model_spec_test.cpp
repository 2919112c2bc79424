// A model block by block: made of a ZAYA1 spec and back, through JSON and back, and nothing else.
#include "ashlar/spec/model_spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/spec/model_keys.h"

namespace ashlar {
namespace {

ModelKeys zaya() {
  ModelKeys s;
  s.vocab_size = 11, s.hidden_size = 8, s.num_hidden_layers = 3, s.num_attention_heads = 4;
  s.num_key_value_heads = 2, s.head_dim = 6, s.num_experts = 3, s.moe_intermediate_size = 5;
  s.router_hidden_size = 7, s.rms_norm_eps = 3e-6, s.partial_rotary_factor = 1.0 / 3.0;
  s.rope_theta = 1e6, s.rope_theta_sliding = 1e3, s.sliding_window = 9;
  s.layer_types = {LayerType::kHybridSliding, LayerType::kHybrid, LayerType::kHybridSliding};
  s.max_position_embeddings = 77, s.pad_token_id = -1, s.bos_token_id = 3, s.eos_token_ids = {4};
  s.skip_output = SkipOutput::kIdentity, s.head_fp32 = true, s.qk_norm_eps = 1e-7;
  return s;
}

std::string refusal(ErrorKind kind, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "accepted";
}

TEST(ModelSpec, SaysOfEachBlockWhatZayaSaysOfAll) {
  const ModelSpec model = model_of(zaya());
  ASSERT_EQ(model.num_blocks(), 3);
  EXPECT_EQ(model.blocks[0], model.blocks[2]);
  const auto& sliding = std::get<CcaSpec>(model.blocks[0].mixer);
  const auto& whole = std::get<CcaSpec>(model.blocks[1].mixer);
  EXPECT_EQ(sliding.window, 9);
  EXPECT_EQ(sliding.rope_theta, 1e3);
  EXPECT_EQ(whole.window, 0);
  EXPECT_EQ(whole.rope_theta, 1e6);
  EXPECT_EQ(whole.rope().rotary_dim, 2);
  EXPECT_EQ(whole.conv_channels(), 36);
  const auto& moe = std::get<MoeSpec>(model.blocks[1].feed_forward);
  EXPECT_EQ(moe.num_experts, 3);
  EXPECT_EQ(std::get<MlpRouterSpec>(moe.router).skip_output, SkipOutput::kIdentity);
  EXPECT_EQ(model.max_positions, 77);
}

TEST(ModelSpec, ComesBackFromJsonAndKeys) {
  for (const char* pattern : {"hybrid", "hybrid_sliding", "alternate"}) {
    ModelKeys spec = zaya();
    const bool all = std::string(pattern) != "alternate";
    for (LayerType& type : spec.layer_types)
      if (all)
        type = pattern == std::string("hybrid") ? LayerType::kHybrid : LayerType::kHybridSliding;
    const ModelSpec model = model_of(spec);
    EXPECT_EQ(parse_model_spec(to_json(model), "model.json"), model) << pattern;
    const ModelKeys again = keys_of(model);
    EXPECT_EQ(model_of(again), model) << pattern;
    EXPECT_EQ(again.layer_types, spec.layer_types) << pattern;
  }
}

TEST(ModelSpec, KeepsAllStopIds) {
  ModelSpec model = model_of(zaya());
  const std::vector<int64_t> cases[] = {{}, {4}, {4, 2}, {2, 4, 9}};
  for (const std::vector<int64_t>& ids : cases) {
    model.eos_token_ids = ids;
    const auto json = nlohmann::json::parse(to_json(model));
    // Earlier versions read this alone.
    EXPECT_EQ(json["eos_token_id"], ids.empty() ? -1 : ids[0]);
    EXPECT_EQ(json.contains("eos_token_ids"), ids.size() > 1);
    EXPECT_EQ(parse_model_spec(to_json(model), "model.json"), model);
    EXPECT_EQ(keys_of(model).eos_token_ids, ids);
  }
  auto json = nlohmann::json::parse(to_json(model));
  json["eos_token_ids"] = {4, 2};
  EXPECT_NE(refusal(ErrorKind::kCorrupt, [&] { parse_model_spec(json.dump(), "model.json"); })
                .find("eos_token_ids is [4, 2]; expected ids of which the first is"),
            std::string::npos);
}

ModelKeys top_k() {
  ModelKeys keys = zaya();
  keys.layer_types = {{AttentionSpec::kKind, MlpSpec::kKind},
                      {AttentionSpec::kKind, MoeSpec::kKind},
                      {AttentionSpec::kKind, MoeSpec::kKind, true}};
  keys.intermediate_size = 6, keys.residual = Residual::kPlain;
  keys.router = RouterKind::kLinear, keys.router_hidden_size = 0;
  keys.skip_output = SkipOutput::kZero;
  keys.linear_router.num_chosen = 2, keys.linear_router.renormalize = false,
  keys.linear_router.scale = 2.5;
  keys.linear_router.expert_bias = true;
  keys.shared_expert_intermediate_size = 4, keys.shared_expert_gate = true;
  return keys;
}

TEST(ModelSpec, StatesALinearRouterAndASharedExpert) {
  const ModelSpec model = model_of(top_k());
  const auto& moe = std::get<MoeSpec>(model.blocks[1].feed_forward);
  EXPECT_EQ(moe.experts_of_token(), 2);
  EXPECT_EQ(moe.shared, (SharedExpertSpec{4, true}));
  EXPECT_EQ(std::get<LinearRouterSpec>(moe.router), (LinearRouterSpec{.num_chosen = 2,
                                                                      .pre_softmax = true,
                                                                      .renormalize = false,
                                                                      .scale = 2.5,
                                                                      .expert_bias = true}));
  EXPECT_EQ(parse_model_spec(to_json(model), "model.json"), model);
  EXPECT_EQ(model_of(keys_of(model)), model);
  const auto json = nlohmann::json::parse(to_json(model))["blocks"][1]["feed_forward"];
  EXPECT_EQ(json["router"], "linear");
  EXPECT_EQ(json["shared_expert"], (nlohmann::json{{"width", 4}, {"gate", true}}));
  // Models that earlier versions know stay as they wrote them.
  const auto old = nlohmann::json::parse(to_json(model_of(zaya())))["blocks"][1]["feed_forward"];
  EXPECT_EQ(old, (nlohmann::json{{"kind", "moe"},
                                 {"num_experts", 3},
                                 {"width", 5},
                                 {"router_width", 7},
                                 {"skip_output", "identity"}}));
}

ModelKeys dense_of_zaya() {
  ModelKeys keys = zaya();
  keys.layer_types = {LayerType::kFullAttention, LayerType::kSlidingAttention,
                      LayerType::kFullAttention};
  keys.intermediate_size = 6, keys.residual = Residual::kPlain;
  keys.skip_output = SkipOutput::kZero;
  return keys;
}

TEST(ModelSpec, StatesBiasesAndScaledRope) {
  for (const AttentionBias bias : {AttentionBias::kNone, AttentionBias::kQkv, AttentionBias::kQkvo})
    for (size_t type = 0; type < kRopeTypeNames.size(); ++type) {
      ModelKeys keys = dense_of_zaya();
      keys.attention_bias = bias, keys.rope_scaling.type = RopeType(type);
      keys.rope_scaling.factor = 4, keys.rope_scaling.original_positions = 64;
      keys.rope_scaling.low_freq_factor = 2, keys.rope_scaling.high_freq_factor = 5;
      keys.rope_scaling.beta_fast = 16, keys.rope_scaling.beta_slow = 3,
      keys.rope_scaling.attention_factor = 0.7;
      keys.rope_scaling.truncate = false;
      const ModelSpec model = model_of(keys);
      EXPECT_EQ(parse_model_spec(to_json(model), "model.json"), model);
      EXPECT_EQ(model_of(keys_of(model)), model);
      EXPECT_EQ(keys_of(model).rope_scaling.type, keys.rope_scaling.type);
      EXPECT_EQ(keys_of(model).attention_bias, bias);
      // Keys that say nothing of the type leave no trace.
      ModelKeys other = keys;
      if (keys.rope_scaling.type != RopeType::kYarn)
        other.rope_scaling.beta_fast = 99, other.rope_scaling.truncate = true;
      if (keys.rope_scaling.type != RopeType::kLlama3) other.rope_scaling.high_freq_factor = 99;
      if (keys.rope_scaling.type < RopeType::kDynamic) other.rope_scaling.original_positions = 99;
      if (keys.rope_scaling.type == RopeType::kDefault) other.rope_scaling.factor = 99;
      EXPECT_EQ(model_of(other), model);
    }
}

// Earlier versions had no type: a scaling was Llama 3's, known by its original positions.
TEST(ModelSpec, EarlierVersionsReadAndWroteLlama3) {
  ModelKeys keys = dense_of_zaya();
  const auto mixer = [](const ModelKeys& of) {
    return nlohmann::json::parse(to_json(model_of(of)))["blocks"][0]["mixer"];
  };
  EXPECT_FALSE(mixer(keys).contains("rope_type"));
  EXPECT_FALSE(mixer(keys).contains("bias"));
  keys.rope_scaling.type = RopeType::kLlama3, keys.rope_scaling.factor = 8,
  keys.rope_scaling.original_positions = 8192;
  EXPECT_FALSE(mixer(keys).contains("rope_type"));
  EXPECT_EQ(mixer(keys)["rope_original_positions"], 8192);
  keys.rope_scaling.type = RopeType::kDynamic;
  EXPECT_EQ(mixer(keys)["rope_type"], "dynamic");
}

// Linear mixers of every kind beside attention, with all that only some models state.
TEST(ModelSpec, StatesLinearMixersAndWhatStandsAroundThem) {
  for (size_t kind = 0; kind < kLinearKindNames.size(); ++kind) {
    ModelKeys keys = top_k();
    keys.layer_types = {LayerType::kLinearAttention,
                        {LinearSpec::kKind, MoeSpec::kKind},
                        LayerType::kFullAttention};
    keys.linear.kind = LinearKind(kind);
    keys.linear.num_key_heads = 2, keys.linear.num_value_heads = 4;
    keys.linear.key_head_dim = 5, keys.linear.value_head_dim = 7, keys.linear.conv_taps = 3;
    keys.linear.map = LinearMap::kRelu;
    keys.residual = Residual::kNormed;
    keys.linear_attn = {1.2, 0.9}, keys.full_attn = {1.3, 0.8}, keys.mlp = {1.1, 0.7};
    keys.attention_output_gate = keys.zero_centered_norm = true;
    const ModelSpec model = model_of(keys);
    EXPECT_EQ(parse_model_spec(to_json(model), "model.json"), model);
    EXPECT_EQ(model_of(keys_of(model)), model);
    EXPECT_EQ(keys_of(model).layer_types, keys.layer_types);
    EXPECT_EQ(model.blocks[0].mixer_factors, keys.linear_attn);
    EXPECT_EQ(model.blocks[2].mixer_factors, keys.full_attn);
    const auto &first = std::get<LinearSpec>(model.blocks[0].mixer),
               &second = std::get<LinearSpec>(model.blocks[1].mixer);
    // Only Lightning's slopes fall with depth.
    EXPECT_EQ(first.slope_factor == second.slope_factor,
              LinearKind(kind) != LinearKind::kLightning);
    EXPECT_EQ(first.value_dim(), 28);
    EXPECT_EQ(first.conv_channels(), 48);
  }
}

TEST(ModelSpec, RefusesKeysForWhatTheyCannotState) {
  ModelSpec model = model_of(zaya());
  std::get<MoeSpec>(model.blocks[2].feed_forward).num_experts = 5;
  EXPECT_EQ(refusal(ErrorKind::kConfig, [&] { keys_of(model); }),
            "block 2 differs from the others in what a recipe states once for all blocks: all but "
            "the kinds of mixer and feed-forward, one window and its RoPE base");
}

TEST(ModelSpec, RefusesWhatItDoesNotWrite) {
  using nlohmann::json;
  ModelKeys keys = zaya();
  keys.intermediate_size = 6, keys.tie_word_embeddings = false;
  keys.layer_types[0] = LayerType::kSlidingAttention;
  const ModelSpec linear = model_of(top_k());
  ModelSpec all = model_of(keys);
  all.blocks.push_back(linear.blocks[1]);
  const json good = json::parse(to_json(all));
  ASSERT_EQ(parse_model_spec(good.dump(), "model.json"), all);
  const auto message = [](const json& bad) {
    return refusal(ErrorKind::kCorrupt, [&] { parse_model_spec(bad.dump(), "model.json"); });
  };
  // Every member, missing or of another type, is named.
  const auto each = [&](const json::json_pointer& place) {
    const json members = good.at(place);
    for (const auto& [name, value] : members.items()) {
      json missing = good, other = good;
      missing.at(place).erase(name);
      other.at(place)[name] = value.is_string() ? json(7) : json("seven");
      for (const json& bad : {missing, other}) {
        // A model without it is tied, a mixture without a shared expert has none.
        if ((name == "tied_head" || name == "shared_expert") && bad == missing) continue;
        EXPECT_NE(message(bad).find(name), std::string::npos) << name << ": " << message(bad);
      }
    }
  };
  each(json::json_pointer(""));
  each(json::json_pointer("/blocks/1"));
  each(json::json_pointer("/blocks/1/mixer"));
  each(json::json_pointer("/blocks/1/feed_forward"));
  each(json::json_pointer("/blocks/3/feed_forward"));
  each(json::json_pointer("/blocks/3/feed_forward/shared_expert"));
  each(json::json_pointer("/blocks/0/mixer"));
  each(json::json_pointer("/blocks/0/feed_forward"));
  json bad = good;
  bad["blocks"][2]["mixer"]["head_dim"] = 0;
  EXPECT_EQ(
      message(bad),
      "model.json: blocks[2]: mixer: head_dim is 0; expected an integer from 1 to 2147483647");
  bad = good;
  bad["blocks"][0]["mixer"]["kind"] = "mamba";
  EXPECT_EQ(
      message(bad),
      "model.json: blocks[0]: mixer: kind is \"mamba\"; expected one of cca, attention, linear");
  bad = good;
  bad["blocks"][3]["feed_forward"]["router"] = "hash";
  EXPECT_EQ(message(bad),
            "model.json: blocks[3]: feed_forward: router is \"hash\"; expected one of mlp, linear");
  bad = good;
  bad["blocks"] = json::array();
  EXPECT_EQ(message(bad), "model.json: blocks is empty; expected at least one block");
}

}  // namespace
}  // namespace ashlar
