// Parsing, overrides and printing of recipes.
#include "ashlar/spec/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/spec/keys.h"
#include "ashlar/spec/retired_keys.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

using Overrides = std::vector<std::string>;

const std::string kRecipes = std::string(ASHLAR_FIXTURES) + "/../../recipes/";
const std::vector<std::string> kRecipeNames = {
    "zaya1-nano", "zaya1-small", "zaya1-8b",    "zaya1-74b",   "llama-nano",
    "llama3-8b",  "tsp-7b",      "linear-nano", "hybrid-nano", "linear-llama3-1b"};

// A small model; `more` is appended.
std::string tiny_text(const std::string& more = "") {
  return "[model]\nvocab_size = 128\nhidden_size = 32\nnum_hidden_layers = 4\n"
         "num_attention_heads = 4\nnum_key_value_heads = 2\nhead_dim = 8\nnum_experts = 4\n"
         "moe_intermediate_size = 24\nrouter_hidden_size = 12\n" +
         more;
}

Recipe parse_text(const std::string& toml, const Overrides& overrides = {}) {
  return parse_recipe(toml, "test.toml", overrides);
}

// The message of the kConfig error that parsing raises.
std::string message_of(const std::string& toml, const Overrides& overrides = {}) {
  return testing_support::message_of(ErrorKind::kConfig, [&] { parse_text(toml, overrides); });
}

TEST(Recipe, AbsentKeysKeepTheDefaultsOfTheStructs) {
  const Recipe recipe = parse_text(tiny_text());
  EXPECT_EQ(recipe.source, "test.toml");
  EXPECT_EQ(recipe.model.vocab_size, 128);
  EXPECT_EQ(recipe.model.router_hidden_size, 12);
  EXPECT_EQ(recipe.model.layer_types, std::vector<LayerType>(4, LayerType::kHybrid));
  EXPECT_EQ(recipe.optim, OptimSpec{});
  EXPECT_EQ(recipe.balance, BalanceSpec{});
  EXPECT_EQ(recipe.train, TrainSpec{});
  EXPECT_EQ(recipe.data.num_streams, 4);
}

// A checkpoint's model.json holds the blocks; whoever reads it judges keys made of them.
TEST(Recipe, KeysMadeOfTheBlocksOfARecipeAreLegal) {
  for (const std::string& name : kRecipeNames) {
    const ModelSpec model = model_of(load_recipe(kRecipes + name + ".toml", {}).model);
    const ModelKeys keys = keys_of(model);
    EXPECT_NO_THROW(validate(keys, "")) << name;
    EXPECT_EQ(model_of(keys).blocks, model.blocks) << name;
  }
}

TEST(Recipe, ReadsEverySectionAndType) {
  const Recipe recipe = parse_text(
      "[run]\nname = \"a \\\"b\\\"\"\n" + tiny_text("rope_theta = 50000\n") +
      "[moe]\nskip_output = \"identity\"\n[moe.balance]\nlr = 2e-3\n[init]\nconv = \"uniform\"\n"
      "[data]\ndocument_reset = false\ntrain = [\"a\", { path = \"b:c\", weight = 2 }]\n"
      "[train]\nseed = 9223372036854775807\nsteps = 1_000\n[health]\nmax_norm_ratio = 4\n"
      "[checkpoint]\nasync = false\n");
  EXPECT_EQ(recipe.name, "a \"b\"");
  EXPECT_EQ(recipe.model.rope_theta, 50000.0);
  EXPECT_EQ(recipe.model.skip_output, SkipOutput::kIdentity);
  EXPECT_EQ(recipe.balance.lr, 2e-3);
  EXPECT_TRUE(recipe.init.conv_uniform);
  EXPECT_FALSE(recipe.data.document_reset);
  EXPECT_EQ(recipe.data.train, (std::vector<BlendEntry>{{"a", 1.0}, {"b:c", 2.0}}));
  EXPECT_EQ(recipe.train.seed, 9223372036854775807u);
  EXPECT_EQ(recipe.train.steps, 1000);
  EXPECT_EQ(recipe.health.max_norm_ratio, 4.0);
  EXPECT_FALSE(recipe.checkpoint.async);
}

TEST(Recipe, OverridesTakeTomlValuesAndBareWords) {
  const Overrides overrides = {"optim.lr=1e-3",        "optim.lr_min=0",
                               "train.steps=7",        "train.steps=9",
                               "train.run_dir=2026",   "run.name=two words",
                               "data.tokenizer=\"t\"", "optim.schedule=linear",
                               "moe.balance.beta1=0",  "optim.muon_nesterov=false"};
  const Recipe recipe = parse_text(tiny_text("[train]\nsteps = 5\n"), overrides);
  EXPECT_EQ(recipe.optim.lr, 1e-3);
  EXPECT_EQ(recipe.optim.lr_min, 0.0);
  EXPECT_EQ(recipe.train.steps, 9) << "the later override wins";
  EXPECT_EQ(recipe.train.run_dir, "2026");
  EXPECT_EQ(recipe.name, "two words");
  EXPECT_EQ(recipe.data.tokenizer, "t");
  EXPECT_EQ(recipe.optim.schedule, DecaySchedule::kLinear);
  EXPECT_EQ(recipe.balance.beta1, 0.0);
  EXPECT_FALSE(recipe.optim.muon_nesterov);
}

TEST(Recipe, OverridesSeeTheResolvedModel) {
  // The pattern stretches with the overridden number of blocks; the streams follow the batch.
  const Recipe recipe =
      parse_text(tiny_text("layer_types = \"alternate\"\nsliding_window = 3\n"),
                 {"model.num_hidden_layers=3", "train.micro_batch=3", "train.global_batch=6"});
  const std::vector<LayerType> expected = {LayerType::kHybridSliding, LayerType::kHybrid,
                                           LayerType::kHybridSliding};
  EXPECT_EQ(recipe.model.layer_types, expected);
  EXPECT_EQ(recipe.data.num_streams, 6);
}

TEST(Recipe, AFileOfMoreThanAMebibyteIsNoRecipe) {
  const testing_support::TemporaryDirectory root;
  const auto files = posix_files();
  const std::string path = root / "long.toml", head = tiny_text() + "# ";
  const std::string longest = head + std::string((1 << 20) - head.size(), 'x');
  write_text(*files, path, longest);
  EXPECT_EQ(load_recipe(path, {}).model.vocab_size, 128);
  write_text(*files, path, longest + "x");
  const std::string message =
      testing_support::message_of(ErrorKind::kConfig, [&] { load_recipe(path, {}); });
  EXPECT_NE(message.find("has 1048577 bytes; expected a recipe of at most 1048576"), message.npos)
      << message;
}

TEST(Recipe, DifferencesAreALineAKey) {
  const Recipe before = parse_text(tiny_text());
  EXPECT_EQ(differences(before, before), std::vector<std::string>{});
  const Recipe now =
      parse_text(tiny_text(), {"optim.lr=0.25", "data.train=A", "train.global_batch=8",
                               "optim.schedule=linear", "checkpoint.async=false"});
  EXPECT_EQ(differences(before, now),
            (std::vector<std::string>{
                "data.train was [], is \"A\"", "data.num_streams was 4, is 8",
                "optim.lr was 0.0006, is 0.25", "optim.schedule was \"cosine\", is \"linear\"",
                "train.global_batch was 4, is 8", "checkpoint.async was true, is false"}));
  // The file that it came from is no key.
  Recipe elsewhere = before;
  elsewhere.source = "other.toml";
  EXPECT_EQ(differences(before, elsewhere), std::vector<std::string>{});
}

TEST(Recipe, BlendsOnTheCommandLine) {
  const auto blend = [](const std::string& value) {
    return parse_text(tiny_text(), {"data.train=" + value}).data.train;
  };
  using Blend = std::vector<BlendEntry>;
  EXPECT_EQ(blend("runs/data/a"), (Blend{{"runs/data/a", 1.0}}));
  EXPECT_EQ(blend("A:0.7,B:0.3"), (Blend{{"A", 0.7}, {"B", 0.3}}));
  EXPECT_EQ(blend("\"A:0.7,B:0.3\""), (Blend{{"A", 0.7}, {"B", 0.3}}));
  EXPECT_EQ(blend("A:2,disk:x"), (Blend{{"A", 2.0}, {"disk:x", 1.0}}));
  EXPECT_EQ(blend("[{path=\"A,B\", weight=3}]"), (Blend{{"A,B", 3.0}}));
  EXPECT_EQ(blend("12"), (Blend{{"12", 1.0}}));
  EXPECT_EQ(blend(""), Blend{});
}

TEST(Recipe, ABrokenOverrideIsTheCommandLinesFault) {
  EXPECT_EQ(message_of(tiny_text(), {"train.steps"}),
            "command line: \"train.steps\" is no override; expected section.key=value");
  EXPECT_EQ(
      message_of(tiny_text(), {"train.stesp=3"}),
      "command line: train.stesp is 3, but there is no such key; did you mean 'train.steps'?");
  EXPECT_EQ(
      message_of(tiny_text(), {"train.lr=3"}),
      "command line: train.lr is 3, but there is no such key; known: moe.balance.lr, optim.lr");
  EXPECT_TRUE(message_of(tiny_text(), {"train.steps=many"})
                  .starts_with("command line: train.steps is 'many'; expected an integer from 1"));
  EXPECT_TRUE(message_of(tiny_text(), {"train.steps=0"})
                  .starts_with("command line: train.steps is 0; expected an integer from 1"));
  EXPECT_TRUE(message_of(tiny_text(), {"train.steps=1\n[optim]\nlr=1"})
                  .starts_with("command line: train.steps is "));
  EXPECT_TRUE(
      message_of(tiny_text(), {"data.train=[1"}).starts_with("command line: data.train=[1: "));
  EXPECT_TRUE(message_of(tiny_text(), {"data.train=A:1,,B:2"})
                  .starts_with("command line: data.train is 'A:1,,B:2'; expected a dataset"));
  EXPECT_TRUE(
      message_of(tiny_text(), {"model=3"}).starts_with("command line: model is 3, but there is"));
  // A rule between keys cannot tell who is to blame: the file is named.
  EXPECT_TRUE(message_of(tiny_text(), {"train.global_batch=6"})
                  .starts_with("test.toml: train.global_batch is 6 but train.micro_batch is 4"));
}

TEST(Recipe, RetiredKeysAreReadOnlyFromTheRecipesOfCheckpoints) {
  for (const RetiredKey& key : retired_keys()) {
    const std::string name(key.name), section = name.substr(0, name.rfind('.'));
    const std::string toml =
        tiny_text(fmt::format("[{}]\n{} = 6\n", section, name.substr(section.size() + 1)));
    const std::string gone =
        fmt::format("{} is 6, but this key is gone; use {}", key.name, key.instead);
    EXPECT_EQ(message_of(toml), "test.toml: " + gone);
    EXPECT_EQ(message_of(tiny_text(), {name + "=6"}), "command line: " + gone);
    Recipe saved = parse_saved_recipe(toml, "test.toml");
    EXPECT_EQ(differences(saved, parse_text(tiny_text())), std::vector<std::string>{}) << key.name;
    for (const std::string& word : split(std::string(key.instead), ' ')) {
      if (word.find('.') == std::string::npos) continue;
      EXPECT_TRUE(std::any_of(recipe_keys().begin(), recipe_keys().end(), [&](const Key& known) {
        return known.name == word;
      })) << word;
    }
    for (const Key& known : recipe_keys()) EXPECT_NE(known.name, key.name);
  }
  const std::string unknown = testing_support::message_of(
      ErrorKind::kConfig, [] { parse_saved_recipe(tiny_text("[health]\nmax_x = 6\n"), "saved"); });
  EXPECT_TRUE(unknown.starts_with("saved: health.max_x is 6, but there is no such key")) << unknown;
}

TEST(Recipe, MessagesStayOneShortLine) {
  const std::string message =
      message_of(tiny_text("\"a\\nb\" = \"" + std::string(5000, 'x') + "\"\n"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 600u);
}

TEST(Recipe, EveryWordOfEveryEnumIsReadAndPrinted) {
  for (const Key& key : recipe_keys()) {
    if (key.type != KeyType::kWord) continue;
    EXPECT_GE(key.words.size(), 2u);
    for (const std::string& word : key.words) {
      const Recipe recipe = parse_text(tiny_text(), {key.name + "=" + word});
      EXPECT_EQ(std::get<std::string>(key.get(recipe)), word) << key.name;
    }
    EXPECT_NE(message_of(tiny_text(), {key.name + "=unheard"}).find(expected_of(key)),
              std::string::npos);
  }
}

TEST(Recipe, AWordMayStandInPlaceOfAnInteger) {
  const auto bucket_bytes = [](const std::string& value) {
    const Recipe recipe = parse_text(tiny_text(), {"parallel.bucket_bytes=" + value});
    EXPECT_EQ(parse_text(to_toml(recipe)), recipe) << value;
    return recipe.parallel.bucket_bytes;
  };
  EXPECT_EQ(bucket_bytes("auto"), kAutoBucketBytes);
  EXPECT_EQ(bucket_bytes("\"auto\""), kAutoBucketBytes);
  EXPECT_EQ(bucket_bytes("4096"), 4096);
  const Recipe stated = parse_text(tiny_text("[parallel]\nbucket_bytes = \"auto\"\n"));
  EXPECT_EQ(stated.parallel.bucket_bytes, kAutoBucketBytes);
  EXPECT_NE(to_toml(stated).find("\nbucket_bytes = \"auto\"\n"), std::string::npos);
  EXPECT_EQ(differences(parse_text(tiny_text()), stated),
            (std::vector<std::string>{"parallel.bucket_bytes was 33554432, is \"auto\""}));
  // The number that stands for the word in memory is none that a recipe may have.
  for (const char* wrong : {"0", "-1", "1023", "4096.0", "automatic", "[4096]", "true"})
    EXPECT_NE(message_of(tiny_text(), {std::string("parallel.bucket_bytes=") + wrong})
                  .find("expected an integer from 1024 to 1099511627776, or auto"),
              std::string::npos)
        << wrong;
  EXPECT_NE(message_of(tiny_text(), {"parallel.zero=auto"})
                .find("parallel.zero is 'auto'; expected an integer from 0 to 3"),
            std::string::npos);
}

TEST(Recipe, IdsAreOneOrAList) {
  const auto ids = [](const std::string& value) {
    const Recipe recipe = parse_text(tiny_text(), {"model.eos_token_id=" + value});
    EXPECT_EQ(parse_text(to_toml(recipe)).model.eos_token_ids, recipe.model.eos_token_ids);
    return recipe.model.eos_token_ids;
  };
  EXPECT_EQ(ids("7"), (std::vector<int64_t>{7}));
  EXPECT_EQ(ids("-1"), std::vector<int64_t>{});
  EXPECT_EQ(ids("[]"), std::vector<int64_t>{});
  EXPECT_EQ(ids("[7, 3]"), (std::vector<int64_t>{7, 3}));
  for (const char* wrong : {"-2", "[3, 3]", "[3, -1]", "[3, 1.5]", "1.0", "\"3\"", "2147483647"})
    EXPECT_NE(message_of(tiny_text(), {std::string("model.eos_token_id=") + wrong})
                  .find("model.eos_token_id is "),
              std::string::npos)
        << wrong;
}

TEST(Recipe, WordsMeanTheirEnumerators) {
  const auto with = [](const std::string& override_text) {
    return parse_text(tiny_text(), {override_text});
  };
  EXPECT_EQ(with("train.precision=auto").train.precision, Precision::kAuto);
  EXPECT_EQ(with("train.precision=bf16").train.precision, Precision::kBF16);
  EXPECT_EQ(with("train.precision=fp32").train.precision, Precision::kF32);
  EXPECT_EQ(with("train.precision=fp64").train.precision, Precision::kF64);
  EXPECT_EQ(with("data.packing=concat").data.packing, Packing::kConcat);
  EXPECT_EQ(with("data.packing=best_fit").data.packing, Packing::kBestFit);
  EXPECT_EQ(with("optim.matrices=muon").optim.matrices, MatrixOptimizer::kMuon);
  EXPECT_EQ(with("optim.matrices=adamw").optim.matrices, MatrixOptimizer::kAdamW);
  EXPECT_EQ(with("optim.schedule=cosine").optim.schedule, DecaySchedule::kCosine);
  EXPECT_EQ(with("optim.schedule=constant").optim.schedule, DecaySchedule::kConstant);
  EXPECT_EQ(with("moe.balance.target=real_experts").balance.target, BalanceTarget::kRealExperts);
  EXPECT_EQ(with("moe.balance.target=all_classes").balance.target, BalanceTarget::kAllClasses);
  EXPECT_EQ(with("moe.balance.scope=global_batch").balance.scope, BalanceScope::kGlobalBatch);
  EXPECT_EQ(with("moe.balance.scope=micro_batch").balance.scope, BalanceScope::kMicroBatch);
  EXPECT_EQ(with("moe.skip_output=zero").model.skip_output, SkipOutput::kZero);
  EXPECT_FALSE(with("init.conv=normal").init.conv_uniform);
  EXPECT_TRUE(with("init.output_scale=depth").init.output_depth);
  EXPECT_FALSE(with("init.output_scale=one").init.output_depth);
}

// A value of every key other than its default, so that a row reading another row's field shows.
KeyValue another_value(const Key& key, const Recipe& recipe) {
  const KeyValue old = key.get(recipe);
  switch (key.type) {
    case KeyType::kBoolean:
      return !std::get<bool>(old);
    case KeyType::kInteger:
      return std::get<int64_t>(old) + 1;
    case KeyType::kNumber:
      return std::get<double>(old) / 3 + 0.1;
    case KeyType::kText:
      return std::get<std::string>(old) + " \\ \" \t caf\u00e9";
    case KeyType::kWord:
      return key.words[key.words[0] == std::get<std::string>(old) ? 1 : 0];
    case KeyType::kBlend:
      return std::vector<BlendEntry>{{"a:1,\"b\"", 0.1}, {"c", 1.0 / 3}};
    case KeyType::kLayers:
      return std::vector<LayerType>{LayerType::kHybrid, LayerType::kHybridSliding};
    case KeyType::kIds:
      return std::vector<int64_t>{3, 1, 2};
    case KeyType::kTexts:
      return std::vector<std::string>{"*norm.weight", "a \"b\""};
  }
  return old;
}

TEST(Recipe, EveryKeySetsItsOwnFieldOnly) {
  const Recipe before = parse_text(tiny_text());
  for (const Key& key : recipe_keys()) {
    Recipe after = before;
    const KeyValue value = another_value(key, before);
    key.set(after, value);
    EXPECT_NE(after, before) << key.name;
    for (const Key& other : recipe_keys()) {
      const KeyValue expected = other.name == key.name ? value : other.get(before);
      EXPECT_EQ(other.get(after), expected) << other.name << " after setting " << key.name;
    }
  }
}

// Recipes of earlier versions state Llama 3's scaling by its original positions alone.
TEST(Recipe, OriginalPositionsWithoutATypeAreLlama3s) {
  const auto type = [](const std::vector<std::string>& overrides) {
    return parse_text(tiny_text(), overrides).model.rope_scaling.type;
  };
  EXPECT_EQ(type({}), RopeType::kDefault);
  EXPECT_EQ(type({"model.rope_factor=8"}), RopeType::kDefault);
  EXPECT_EQ(type({"model.rope_factor=8", "model.rope_original_positions=64"}), RopeType::kLlama3);
  EXPECT_EQ(type({"model.rope_original_positions=64", "model.rope_type=yarn"}), RopeType::kYarn);
}

TEST(Recipe, PrintingRoundTripsAwkwardValues) {
  Recipe recipe =
      parse_text(tiny_text("layer_types = [\"hybrid\", \"hybrid\", \"hybrid_sliding\", "
                           "\"hybrid\"]\nsliding_window = 7\n"));
  recipe.name = "a\n\"b\"\\\x01 caf\u00e9";
  recipe.data.train = {{"x,y", 1.0}};
  recipe.data.validation = {{"p:1", 1.0}, {"q", 1.0 / 3}};
  recipe.optim.lr = 0.1 + 0.2;
  recipe.optim.lr_min = 5e-324;
  recipe.model.rope_theta = 1e22;
  recipe.train.seed = 9223372036854775807u;
  EXPECT_EQ(parse_text(to_toml(recipe)), recipe);
}

class RecipeFiles : public testing::TestWithParam<std::string> {};

TEST_P(RecipeFiles, RoundTrip) {
  const Recipe recipe = load_recipe(kRecipes + GetParam() + ".toml", {});
  EXPECT_EQ(recipe.name, GetParam());
  const std::string printed = to_toml(recipe);
  const Recipe again = parse_recipe(printed, recipe.source, {});
  EXPECT_EQ(again, recipe);
  EXPECT_EQ(to_toml(again), printed);
  for (const Key& key : recipe_keys()) {
    const std::string line = key.name.substr(key.name.rfind('.') + 1) + " = ";
    EXPECT_NE(printed.find("\n" + line), std::string::npos) << key.name << " is not printed";
  }
}

TEST_P(RecipeFiles, DataAndDirectoryCanBeOverridden) {
  const Recipe recipe = load_recipe(kRecipes + GetParam() + ".toml",
                                    Overrides{"data.train=elsewhere", "train.run_dir=runs/other"});
  EXPECT_EQ(recipe.data.train, (std::vector<BlendEntry>{{"elsewhere", 1.0}}));
  EXPECT_EQ(recipe.train.run_dir, "runs/other");
}

INSTANTIATE_TEST_SUITE_P(All, RecipeFiles, testing::ValuesIn(kRecipeNames), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

TEST(Recipe, LayerTypesRepeatAndSayTheRest) {
  const auto layers = [](const std::string& value, const std::string& more = "") {
    std::vector<std::string> overrides = {"model.num_hidden_layers=4", "model.intermediate_size=8",
                                          "model.sliding_window=5", "model.layer_types=" + value};
    if (!more.empty()) overrides.push_back(more);
    return parse_recipe(tiny_text(), "run.toml", overrides).model;
  };
  const LayerType full = LayerType::kFullAttention, mixed{CcaSpec::kKind, MlpSpec::kKind, true};
  const ModelKeys dense = layers("full_attention");
  EXPECT_EQ(dense.layer_types, std::vector(4, full));
  EXPECT_EQ(dense.residual, Residual::kPlain);
  EXPECT_EQ(dense.partial_rotary_factor, 1.0);
  EXPECT_EQ(layers("attention+mlp").layer_types, dense.layer_types);
  const ModelKeys both = layers("[\"full_attention\", \"cca_sliding+mlp\"]");
  EXPECT_EQ(both.layer_types, (std::vector{full, mixed, full, mixed}));
  EXPECT_EQ(both.residual, Residual::kScaled);
  EXPECT_EQ(both.partial_rotary_factor, 0.5);
  EXPECT_EQ(layers("full_attention", "model.residual=scaled").residual, Residual::kScaled);
  EXPECT_EQ(value_text(both.layer_types), "[\"full_attention\", \"cca_sliding+mlp\"]");
  EXPECT_EQ(value_text(dense.layer_types), "\"full_attention\"");
  EXPECT_THROW(layers("[\"full_attention\", \"hybrid\", \"hybrid\"]"), Error);
  EXPECT_THROW(layers("attention+moes"), Error);
  EXPECT_THROW(layers("full_attention", "model.intermediate_size=0"), Error);
}

TEST(Recipe, ReleasedShapes) {
  const Recipe large = load_recipe(kRecipes + "zaya1-74b.toml", {});
  EXPECT_EQ(large.model.layer_types[0], LayerType::kHybridSliding);
  EXPECT_EQ(large.model.layer_types[59], LayerType::kHybrid);
  const ModelSpec blocks = model_of(large.model);
  const auto cca = [&](size_t l) { return std::get<CcaSpec>(blocks.blocks[l].mixer); };
  EXPECT_EQ(cca(0).window, 4097);
  EXPECT_EQ(cca(1).window, 0);
  EXPECT_EQ(cca(0).rope_theta, 1e4);
  EXPECT_EQ(cca(1).rope_theta, 5e6);
  EXPECT_EQ(large.data.num_streams, 1024);
  const Recipe base = load_recipe(kRecipes + "zaya1-8b.toml", {});
  EXPECT_EQ(base.model.q_dim() + base.model.kv_dim(), 1280);
  EXPECT_EQ(base.model.rotary_dim(), 64);
  // Phase 1: 8 T tokens.
  const double tokens = double(base.train.steps) * double(base.train.global_batch) *
                        double(base.data.sequence_length);
  EXPECT_NEAR(tokens, 8e12, 4096.0 * 4096.0);
}

TEST(Recipe, AMissingFileIsAConfigurationError) {
  for (const std::string& path : {kRecipes + "absent.toml", kRecipes}) {
    const std::string message =
        testing_support::message_of(ErrorKind::kConfig, [&] { load_recipe(path, {}); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  }
}

TEST(Recipe, MayBeALink) {
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path file = std::filesystem::absolute(kRecipes + "zaya1-nano.toml");
  const std::string link = directory / "link.toml";
  std::filesystem::create_symlink(file, link);
  Recipe linked = load_recipe(link, {});
  linked.source = file.string();
  EXPECT_EQ(linked, load_recipe(file.string(), {}));
}

// A row of the table in docs/recipes.md.
std::string documented(const Key& key) {
  const std::string initial =
      key.required ? "required"
                   : (key.type == KeyType::kLayers ? "`\"hybrid\"`"
                                                   : "`" + value_text(key.get(Recipe{})) + "`");
  return "| `" + key.name + "` | " + initial + " | " + expected_of(key) + " | " + key.meaning +
         " |\n";
}

TEST(Recipe, EveryKeyIsDocumented) {
  const auto files = posix_files();
  const std::string page =
      read_text(*files, std::string(ASHLAR_FIXTURES) + "/../../docs/recipes.md");
  for (const Key& key : recipe_keys())
    EXPECT_NE(page.find(documented(key)), std::string::npos) << "docs/recipes.md lacks the row\n"
                                                             << documented(key);
}

}  // namespace
}  // namespace ashlar
