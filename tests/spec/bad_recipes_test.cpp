// Every malformed file of tests/fixtures/bad/recipes: one line with file, key, value and remedy.
#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/spec/recipe.h"

namespace ashlar {
namespace {

struct BadRecipe {
  std::string file;
  std::vector<std::string> fragments;  // all must occur in the message
};

void PrintTo(const BadRecipe& bad, std::ostream* out) {
  *out << bad.file;
}

const std::string kDirectory = std::string(ASHLAR_FIXTURES) + "/bad/recipes";

const std::vector<BadRecipe>& bad_recipes() {
  static const std::vector<BadRecipe> kCases = {
      {"syntax", {"line 8, column", "expected TOML"}},
      {"unterminated_string", {"line 17, column", "expected TOML"}},
      {"duplicate_key", {"line 17, column", "steps", "expected TOML"}},
      {"not_utf8", {"line 2", "invalid utf-8", "expected TOML"}},
      {"empty", {"model.vocab_size is missing", "an integer from 2"}},
      {"unknown_section", {"no section [trian]", "train"}},
      {"scalar_section", {"steps is 10, but there is no such key", "did you mean 'train.steps'?"}},
      {"unknown_key", {"model.hiden_size is 32, but there is no such key", "model.hidden_size"}},
      {"key_of_other_section",
       {"train.weight_decay is 0.1,", "did you mean 'optim.weight_decay'?"}},
      {"section_as_value", {"moe.balance is 3", "a section [moe.balance]"}},
      {"wrong_type_text", {"train.steps is 'ten'", "expected an integer from 1"}},
      {"wrong_type_float", {"train.steps is 1000.0", "expected an integer", "write 1000"}},
      {"wrong_type_table", {"optim.lr is a table", "expected a number of at least 0"}},
      {"out_of_range", {"optim.beta2 is 1.0", "expected a number from 0 to below 1"}},
      {"too_large",
       {"model.num_hidden_layers is 1000000000000", "expected an integer from 1 to 1024"}},
      {"negative", {"train.micro_batch is -2", "expected an integer from 1"}},
      {"trace_steps", {"train.trace_steps is -1", "expected an integer from 0 to 1000"}},
      {"device", {"train.device is 'cuda'", "expected one of auto, cpu, gpu"}},
      {"launch", {"launch.fruitless_attempts is 0", "expected an integer of at least 1"}},
      {"on_numeric",
       {"launch.on_numeric is 'go_on'", "expected one of stop, skip_samples, lower_lr"}},
      {"nan", {"optim.lr is nan", "expected a number of at least 0"}},
      {"init_model", {"init.model is 5", "expected a text"}},
      {"infinite", {"optim.clip_norm is inf", "expected a number of at least 0"}},
      {"bad_enum", {"optim.schedule is 'cosin'", "expected one of cosine, linear, constant"}},
      {"bucket_bytes",
       {"parallel.bucket_bytes is 'large'", "expected an integer from 1024", "or auto"}},
      {"collectives", {"parallel.collectives is 'nccl'", "expected one of exact, native"}},
      {"stream",
       {"train.stream is bf16 but train.precision is fp32", "precision bf16", "stream fp32"}},
      {"freeze_from_seed", {"train.freeze names tensors but init.model is \"\"", "name the model"}},
      {"lora_and_freeze",
       {"lora.rank is 8 and train.freeze names tensors", "leave out train.freeze"}},
      {"lora_targets", {"lora.targets is [", "a list of texts, none of them empty"}},
      {"missing_model_key", {"model.head_dim is missing", "expected an integer from 1 to 256"}},
      {"heads",
       {"model.num_attention_heads is 6 but model.num_key_value_heads is 4",
        "choose a multiple of 4: 4 or 8"}},
      {"odd_rotary",
       {"model.partial_rotary_factor is 0.375", "model.head_dim is 8", "rotates 3 channels",
        "0.25 or 0.5"}},
      {"odd_values",
       {"model.head_dim is 5 but model.num_key_value_heads is 1", "choose head_dim 4 or 6"}},
      {"global_batch",
       {"train.global_batch is 5 but train.micro_batch is 2", "choose a multiple of 2: 4 or 6"}},
      {"layer_types_length",
       {"model.layer_types has 3 entries but model.num_hidden_layers is 4", "one per block"}},
      {"layer_types_word", {"model.layer_types is", "'full'", "expected hybrid, hybrid_sliding"}},
      {"mlp_without_width",
       {"model.intermediate_size is 0 but model.layer_types has blocks with mlp",
        "choose at least 1"}},
      {"rope_scaling",
       {"model.rope_high_freq_factor is 4 but model.rope_low_freq_factor is 4", "choose more"}},
      {"rope_without_positions",
       {"model.rope_original_positions is 0 but model.rope_type is yarn", "choose at least 1"}},
      {"rope_linear_positions",
       {"model.rope_original_positions is 64 but model.rope_type is linear", "choose 0"}},
      {"rope_beta",
       {"model.rope_beta_fast is 32 but model.rope_beta_slow is 64", "choose at least as much"}},
      {"rope_dynamic",
       {"model.rope_type is dynamic but RoPE rotates 2 channels", "choose at least 4"}},
      {"window_missing",
       {"model.sliding_window is 0 but model.layer_types has hybrid_sliding blocks",
        "choose at least 1"}},
      {"token_id", {"model.eos_token_id is 128 but model.vocab_size is 128", "choose 0 to 127"}},
      {"token_ids_outside", {"model.eos_token_id is 200 but model.vocab_size is 128"}},
      {"token_ids_twice", {"model.eos_token_id is [ 1, 2, 1 ]", "a list of such, each once"}},
      {"token_ids_negative", {"model.eos_token_id is [ 1, -1 ]", "a list of such, each once"}},
      {"streams", {"data.num_streams is 6 but train.global_batch is 4", "divisor of the batch: 4"}},
      {"blend_weight", {"data.train gives a the weight -0.5", "expected a number above 0"}},
      {"blend_key", {"data.train is", "wieght", "expected a dataset prefix"}},
      {"replay_pipeline", {"health.replay_every is 50 but parallel.pp is 2", "or pp 1"}},
      {"replay_scope",
       {"health.replay_every is 50 but moe.balance.scope is", "or scope \"global_batch\""}},
      {"rates", {"optim.lr_min is 0.001 but optim.lr is 0.0001", "choose at most 0.0001"}},
      {"keep_every",
       {"checkpoint.keep_every is 250 but checkpoint.every is 100",
        "choose a multiple of 100: 200 or 300"}},
      {"sequence_length",
       {"data.sequence_length is 65536 but model.max_position_embeddings is 32768",
        "choose at most 32768"}},
  };
  return kCases;
}

class BadRecipes : public testing::TestWithParam<BadRecipe> {};

TEST_P(BadRecipes, OneLineNamesFilePlaceValueAndRemedy) {
  const std::string path = kDirectory + "/" + GetParam().file + ".toml";
  try {
    load_recipe(path, {});
    FAIL() << "accepted " << path;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kConfig) << message;
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find(path, 1), std::string::npos) << "the file twice: " << message;
    for (const std::string& fragment : GetParam().fragments)
      EXPECT_NE(message.find(fragment), std::string::npos) << fragment << " not in: " << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, BadRecipes, testing::ValuesIn(bad_recipes()),
                         [](const auto& info) { return info.param.file; });

TEST(BadRecipes, EveryFileHasACase) {
  std::set<std::string> expected;
  for (const BadRecipe& bad : bad_recipes()) expected.insert(bad.file + ".toml");
  const auto names = posix_files()->list(kDirectory);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
}

}  // namespace
}  // namespace ashlar
