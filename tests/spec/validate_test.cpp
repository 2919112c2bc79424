// Every rule of validate, on values made in code.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/spec/keys.h"
#include "ashlar/spec/recipe.h"

namespace ashlar {
namespace {

Recipe good() {
  Recipe recipe;
  recipe.source = "run.toml";
  ModelKeys& m = recipe.model;
  m.vocab_size = 128;
  m.hidden_size = 32;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 8;
  m.num_experts = 4;
  m.moe_intermediate_size = 24;
  m.router_hidden_size = 12;
  m.layer_types = {LayerType::kHybrid, LayerType::kHybrid};
  return recipe;
}

// The message of validate; "" if it accepts.
std::string judged(const Recipe& recipe) {
  try {
    validate(recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(Validate, AcceptsTheExtremes) {
  EXPECT_EQ(judged(good()), "");
  Recipe recipe = good();
  recipe.model.num_experts = 1;
  recipe.model.num_attention_heads = recipe.model.num_key_value_heads = 1;
  recipe.model.head_dim = 2;
  recipe.model.partial_rotary_factor = 1;
  recipe.model.qk_norm_eps = 0;
  recipe.model.pad_token_id = recipe.model.bos_token_id = -1;
  recipe.model.eos_token_ids = {};
  recipe.model.layer_types[1] = LayerType::kHybridSliding;
  recipe.model.sliding_window = 1;
  recipe.optim.lr = recipe.optim.lr_min = recipe.optim.clip_norm = 0;
  recipe.optim.muon_momentum = 0;
  recipe.data.sequence_length = 1;
  recipe.data.num_streams = 1;
  EXPECT_EQ(judged(recipe), "");
  recipe = good();
  recipe.data.sequence_length = recipe.model.max_position_embeddings = 512;
  recipe.model.eos_token_ids = {recipe.model.vocab_size - 1, 0};
  recipe.checkpoint.keep_every = recipe.checkpoint.every = 700;
  EXPECT_EQ(judged(recipe), "");
}

TEST(Validate, RulesOfRouters) {
  Recipe linear = good();
  linear.model.router = RouterKind::kLinear, linear.model.router_hidden_size = 0;
  linear.model.linear_router.num_chosen = 4, linear.model.linear_router.expert_bias = true;
  linear.model.shared_expert_intermediate_size = 8, linear.model.shared_expert_gate = true;
  EXPECT_EQ(judged(linear), "");
  const auto with = [&](const Recipe& base, auto change) {
    Recipe recipe = base;
    change(recipe.model);
    const std::string message = judged(recipe), file = "run.toml: ";
    EXPECT_TRUE(message.starts_with(file)) << message;
    return message.substr(file.size());
  };
  EXPECT_EQ(with(linear, [](ModelKeys& m) { m.linear_router.num_chosen = 5; }),
            "model.num_experts_per_tok is 5 but model.num_experts is 4; choose 1 to 4");
  EXPECT_EQ(
      with(linear,
           [](ModelKeys& m) { m.linear_router.pre_softmax = m.linear_router.renormalize = false; }),
      "model.norm_topk_prob is false but model.router_pre_softmax is false: a softmax over "
      "the chosen experts adds up to 1; choose norm_topk_prob true");
  EXPECT_EQ(with(linear, [](ModelKeys& m) { m.shared_expert_intermediate_size = 0; }),
            "model.shared_expert_gate is true but model.shared_expert_intermediate_size is 0; "
            "choose at least 1, or no gate");
  EXPECT_EQ(with(linear, [](ModelKeys& m) { m.skip_output = SkipOutput::kIdentity; }),
            "moe.skip_output is identity but model.router is linear, which skips no token; leave "
            "it out, or choose router mlp");
  EXPECT_EQ(with(good(), [](ModelKeys& m) { m.linear_router.num_chosen = 2; }),
            "model.num_experts_per_tok is 2 but model.router is mlp, which chooses one expert; "
            "choose 1, or router linear");
  EXPECT_EQ(with(good(), [](ModelKeys& m) { m.linear_router.expert_bias = true; }),
            "model.router_expert_bias is true but model.router is mlp, which knows nothing of it; "
            "leave it out, or choose router linear");
  EXPECT_EQ(with(good(), [](ModelKeys& m) { m.linear_router.scale = 2; }),
            "model.routed_scaling_factor is 2 but model.router is mlp, which knows nothing of it; "
            "leave it out, or choose router linear");
  EXPECT_EQ(with(good(), [](ModelKeys& m) { m.linear_router.renormalize = false; }),
            "model.norm_topk_prob is false but model.router is mlp, which knows nothing of it; "
            "leave it out, or choose router linear");
  EXPECT_EQ(with(good(), [](ModelKeys& m) { m.router_hidden_size = 0; }),
            "model.router_hidden_size is 0 but model.layer_types has blocks with moe and router "
            "mlp; choose at least 1");
}

TEST(Validate, LinearMixersAreOfOneKind) {
  Recipe recipe = good();
  ModelKeys& m = recipe.model;
  m.layer_types.assign(size_t(m.num_hidden_layers), {LinearSpec::kKind, MoeSpec::kKind});
  m.linear.num_key_heads = 2, m.linear.num_value_heads = 4;
  m.linear.key_head_dim = m.linear.value_head_dim = 8;
  EXPECT_EQ(judged(recipe), "");
  const auto with = [&](auto change) {
    Recipe other = recipe;
    change(other.model);
    return judged(other).substr(std::string("run.toml: ").size());
  };
  EXPECT_EQ(with([](ModelKeys& k) { k.linear.kind = LinearKind::kGla, k.linear.causal = false; }),
            "model.linear_causal is false but model.linear_recurrence is gla, whose states change "
            "from token to token; choose basic, or linear_causal true");
  EXPECT_EQ(
      with([](ModelKeys& k) { k.linear.kind = LinearKind::kLightning, k.linear.conv_taps = 4; }),
      "model.linear_conv_kernel_dim is 4 but model.linear_recurrence is lightning, which "
      "goes through SiLU without a convolution; choose 0");
  EXPECT_EQ(with([](ModelKeys& k) {
              k.linear.kind = LinearKind::kGatedDelta;
              k.linear.map = LinearMap::kElu;
            }),
            "model.linear_feature_map is elu but model.linear_recurrence is gated_delta, which has "
            "its own; leave it out");
  EXPECT_EQ(with([](ModelKeys& k) { k.linear.conv_taps = 1; }),
            "model.linear_conv_kernel_dim is 1, which is no convolution; choose 0, or 2 to 8 taps");
}

// Half of what an int64_t holds: 2^62 tokens are too many, one step less is not.
TEST(Validate, TokensOfARunStayBelow2To62) {
  Recipe recipe = good();
  recipe.train.global_batch = 1 << 20;
  recipe.data.sequence_length = recipe.model.max_position_embeddings = 1 << 14;
  recipe.train.steps = 1 << 28;  // 2^62: the bound is the nearest double
  EXPECT_EQ(judged(recipe), "");
  recipe.train.steps = (1 << 28) + (1 << 20);
  EXPECT_NE(judged(recipe).find("train.steps is 269484032, which makes 4.63e+18 tokens"),
            std::string::npos);
}

struct Rule {
  std::string name;
  std::function<void(Recipe&)> break_it;
  std::string message;
};

void PrintTo(const Rule& rule, std::ostream* out) {
  *out << rule.name;
}

class Rules : public testing::TestWithParam<Rule> {};

TEST_P(Rules, NameKeysValuesAndNearestLegalValues) {
  Recipe recipe = good();
  GetParam().break_it(recipe);
  EXPECT_EQ(judged(recipe), "run.toml: " + GetParam().message);
}

const double kNaN = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    All, Rules,
    testing::Values(
        Rule{"heads",
             [](Recipe& r) {
               r.model.num_attention_heads = 6;
               r.model.num_key_value_heads = 4;
             },
             "model.num_attention_heads is 6 but model.num_key_value_heads is 4; choose a multiple "
             "of 4: 4 or 8"},
        Rule{"fewer_heads_than_groups", [](Recipe& r) { r.model.num_attention_heads = 1; },
             "model.num_attention_heads is 1 but model.num_key_value_heads is 2; choose a multiple "
             "of 2: 2"},
        Rule{"odd_values",
             [](Recipe& r) {
               r.model.num_key_value_heads = 1;
               r.model.head_dim = 5;
             },
             "model.head_dim is 5 but model.num_key_value_heads is 1: half of their product is "
             "delayed by one token, so it must be even; choose head_dim 4 or 6"},
        Rule{
            "odd_rotary", [](Recipe& r) { r.model.partial_rotary_factor = 0.7; },
            "model.partial_rotary_factor is 0.7 but model.head_dim is 8, which rotates 5 channels; "
            "choose a factor that rotates an even number of at least 2: 0.5 or 0.75"},
        Rule{
            "no_rotary", [](Recipe& r) { r.model.partial_rotary_factor = 0.1; },
            "model.partial_rotary_factor is 0.1 but model.head_dim is 8, which rotates 0 channels; "
            "choose a factor that rotates an even number of at least 2: 0.25"},
        Rule{"tiny_head", [](Recipe& r) { r.model.head_dim = 1; },
             "model.head_dim is 1, but RoPE rotates at least 2 channels of a head; choose at least "
             "2"},
        Rule{
            "layer_count", [](Recipe& r) { r.model.layer_types.pop_back(); },
            "model.layer_types has 1 entries but model.num_hidden_layers is 2; give one per block, "
            "so many that they repeat, or one name for all"},
        Rule{"window", [](Recipe& r) { r.model.layer_types[0] = LayerType::kHybridSliding; },
             "model.sliding_window is 0 but model.layer_types has hybrid_sliding blocks; choose at "
             "least 1, for example 4097 (the token itself counts)"},
        Rule{"token", [](Recipe& r) { r.model.bos_token_id = 128; },
             "model.bos_token_id is 128 but model.vocab_size is 128; choose 0 to 127, or -1 for "
             "none"},
        Rule{"empty_blend_path",
             [](Recipe& r) {
               r.data.validation = {{"", 1.0}};
             },
             "data.validation has an entry without a path; expected the prefix of a prepared "
             "dataset"},
        Rule{"blend_weight",
             [](Recipe& r) {
               r.data.train = {{"a", 1.0}, {"b", 0.0}};
             },
             "data.train gives b the weight 0; expected a number above 0"},
        Rule{"blend_nan",
             [](Recipe& r) {
               r.data.train = {{"a", kNaN}};
             },
             "data.train gives a the weight nan; expected a number above 0"},
        Rule{"global_batch",
             [](Recipe& r) {
               r.train.micro_batch = 3;
               r.train.global_batch = 8;
             },
             "train.global_batch is 8 but train.micro_batch is 3; choose a multiple of 3: 6 or 9"},
        Rule{"small_global_batch", [](Recipe& r) { r.train.global_batch = 2; },
             "train.global_batch is 2 but train.micro_batch is 4; choose a multiple of 4: 4"},
        Rule{"too_many_tokens",
             [](Recipe& r) {
               r.train.steps = 1 << 30;
               r.train.global_batch = 1 << 20;
               r.data.sequence_length = 1 << 14;
               r.model.max_position_embeddings = 1 << 14;
             },
             "train.steps is 1073741824, which makes 1.84e+19 tokens of the run; expected fewer "
             "than 4.6e18"},
        Rule{"streams", [](Recipe& r) { r.data.num_streams = 3; },
             "data.num_streams is 3 but train.global_batch is 4; choose a divisor of the batch: 2 "
             "or "
             "4"},
        Rule{"sequence", [](Recipe& r) { r.model.max_position_embeddings = 256; },
             "data.sequence_length is 512 but model.max_position_embeddings is 256; choose at most "
             "256 or raise the model's limit"},
        Rule{"rates", [](Recipe& r) { r.optim.lr = 1e-6; },
             "optim.lr_min is 6e-05 but optim.lr is 1e-06; choose at most 1e-06"},
        Rule{"keep_every", [](Recipe& r) { r.checkpoint.keep_every = 700; },
             "checkpoint.keep_every is 700 but checkpoint.every is 500; choose a multiple of 500: "
             "500 or 1000"},
        Rule{"keep_without_every",
             [](Recipe& r) {
               r.checkpoint.every = 0;
               r.checkpoint.keep_every = 700;
             },
             "checkpoint.keep_every is 700 but checkpoint.every is 0, which saves only at the end; "
             "choose keep_every 0 or give checkpoint.every"},
        Rule{"keep_without_any",
             [](Recipe& r) {
               r.checkpoint.every = -1;
               r.checkpoint.keep_every = 700;
             },
             "checkpoint.keep_every is 700 but checkpoint.every is -1, which saves never; choose "
             "keep_every 0 or give checkpoint.every"},
        Rule{"run_dir", [](Recipe& r) { r.train.run_dir.clear(); },
             "train.run_dir is \"\"; expected a directory"},
        Rule{"seed", [](Recipe& r) { r.train.seed = uint64_t(1) << 63; },
             "train.seed is -9223372036854775808; expected an integer of at least 0"}),
    [](const auto& info) { return info.param.name; });

// Values just outside of the range of a key, which all must be refused by name.
std::vector<KeyValue> outside(const Key& key) {
  const KeyRange& range = key.range;
  if (key.type == KeyType::kIds)
    return {std::vector<int64_t>{1, -2}, std::vector<int64_t>{int64_t(range.max) + 1}};
  if (key.type == KeyType::kInteger) {
    std::vector<KeyValue> values = {static_cast<int64_t>(range.min) - 1};
    if (std::isfinite(range.max)) values.push_back(static_cast<int64_t>(range.max) + 1);
    return values;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<KeyValue> values = {kNaN, infinity, -infinity};
  values.push_back(range.min_excluded ? range.min : range.min - 1e-3);
  if (std::isfinite(range.max)) values.push_back(range.max_excluded ? range.max : range.max + 1e-3);
  return values;
}

TEST(Validate, EveryRangeIsJudged) {
  for (const Key& key : recipe_keys()) {
    if (key.type != KeyType::kInteger && key.type != KeyType::kNumber && key.type != KeyType::kIds)
      continue;
    for (const KeyValue& value : outside(key)) {
      Recipe recipe = good();
      key.set(recipe, value);
      EXPECT_EQ(judged(recipe), "run.toml: " + key.name + " is " + value_text(value) +
                                    "; expected " + expected_of(key));
    }
  }
}

TEST(Validate, AModelAloneIsNamedByItsSection) {
  ModelKeys model = good().model;
  EXPECT_NO_THROW(validate(model, ""));
  model.num_attention_heads = 3;
  try {
    validate(model, "config.json: ");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "config.json: num_attention_heads is 3 but config.json: num_key_value_heads is 2; "
                 "choose a multiple of 2: 2 or 4");
  }
  model.hidden_size = 0;
  try {
    validate(model, "model.");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "model.hidden_size is 0; expected an integer from 1 to 131072");
  }
}

TEST(Validate, DefaultStreams) {
  EXPECT_EQ(default_num_streams(1), 1);
  EXPECT_EQ(default_num_streams(4), 4);
  EXPECT_EQ(default_num_streams(6), 6);
  EXPECT_EQ(default_num_streams(1024), 1024);
  EXPECT_EQ(default_num_streams(1536), 1536);
  EXPECT_EQ(default_num_streams(4096), 1024);
}

TEST(Tune, TheGroupMlpHasNoRouters) {
  const std::string router = "model.layers.1.mlp.gate.down_proj.weight";
  const auto adapts = [&](const char* target, const std::string& weight) {
    TuneSpec tune;
    tune.lora.rank = 1, tune.lora.targets = {target};
    return tune.adapts(weight);
  };
  EXPECT_FALSE(adapts("mlp", router));
  EXPECT_TRUE(adapts("mlp.gate.down_proj", router));
  EXPECT_TRUE(adapts("down_proj", router));
  EXPECT_TRUE(adapts("mlp", "model.layers.1.mlp.down_proj.weight"));
  EXPECT_TRUE(adapts("mlp", "model.layers.1.mlp.shared_expert.gate_proj.weight"));
}

}  // namespace
}  // namespace ashlar
