// The members of config.json that no family follows: harmless ones, ones that must be neutral, and
// those that are named.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ashlar/models/hf/members.h"
#include "ashlar/models/source.h"
#include "tests/models/hf_config_cases.h"
#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

Json config_of(const std::string& directory) {
  return Json::parse(slurp(test_data(directory + "/config.json")));
}

std::vector<std::string> not_followed(const Json& config) {
  return parse_hf_config(config.dump(), "config.json").not_followed;
}

// Files that transformers itself writes, and files that were released.
TEST(HfMembers, FilesOfTransformersHaveNothingToName) {
  for (const char* family : kFamilies)
    EXPECT_EQ(not_followed(config_of(family)), std::vector<std::string>{}) << family;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("hf_configs")))
    EXPECT_EQ(not_followed(Json::parse(slurp(entry.path()))), std::vector<std::string>{})
        << entry.path();
}

TEST(HfMembers, HarmlessOnesMayHaveAnyValue) {
  for (const HarmlessMember& member : harmless_members()) {
    EXPECT_FALSE(member.reason.empty());
    Json config = config_of(member.families.find("minimax") != std::string::npos ? "hf_minimax"
                            : member.families.find("zaya") != std::string::npos  ? "hf_small"
                            : member.families.find("next") != std::string::npos  ? "hf_qwen3_next"
                            : member.families.empty()                            ? "hf_llama"
                                                                                 : "hf_qwen3");
    config[std::string(member.name)] = {{"any", {1, 2.5, "value"}}};
    if (!member.families.empty()) config[std::string(member.name)] = 1;
    EXPECT_EQ(not_followed(config), std::vector<std::string>{}) << member.name;
  }
}

TEST(HfMembers, OthersMustBeNeutral) {
  for (const NeutralMember& member : neutral_members()) {
    const std::string name(member.name);
    const bool of_mixtral = name == "mlp_bias" || name == "attention_bias";
    const char* directory = member.families == "qwen3_next"          ? "hf_qwen3_next"
                            : member.families.starts_with("qwen3")   ? "hf_qwen3"
                            : member.families.starts_with("minimax") ? "hf_minimax"
                            : of_mixtral                             ? "hf_mixtral"
                                                                     : "hf_llama";
    Json config = config_of(directory);
    config[name] = nullptr;
    EXPECT_EQ(not_followed(config), std::vector<std::string>{}) << name;
    for (const Json& value : Json::parse(member.values)) {
      config[name] = value;
      EXPECT_EQ(not_followed(config), std::vector<std::string>{}) << name;
    }
    config[name] = 0.123;
    const std::string message = refusal(config);
    EXPECT_TRUE(message.starts_with("config.json: " + name + " is 0.123; expected ")) << message;
    EXPECT_NE(message.find(member.why), std::string::npos) << message;
  }
}

TEST(HfMembers, AreNamedByFamily) {
  const struct {
    const char *directory, *member;
    Json value;
    const char* verdict;  // "": harmless; "named"; or what the message must say
  } cases[] = {
      {"hf_llama", "sliding_window", 8, "named"},
      {"hf_qwen3", "sliding_window", 8, ""},
      {"hf_qwen3_next", "sliding_window", 8, "named"},
      {"hf_llama", "max_window_layers", 8, "named"},
      {"hf_llama", "block_size", 8, "named"},
      {"hf_minimax", "block_size", 16, ""},
      {"hf_llama", "use_sliding_window", false, "named"},
      {"hf_llama", "attention_dropout", 0.1, "named"},
      {"hf_llama", "attention_dropout", 0, ""},
      {"hf_mixtral", "router_jitter_noise", 0.1, "named"},
      {"hf_mixtral", "router_jitter_noise", 0, ""},
      {"hf_llama", "rotary_base", 1e6, "named"},
      {"hf_llama", "rope_pct", 0.5, "named"},
      {"hf_llama", "some_new_factor", 2.0, "named"},
      {"hf_llama", "logit_scale", 0.5, "logit_scale is 0.5; expected 1 or no such key"},
      {"hf_llama", "logit_scale", 1, ""},
      {"hf_llama", "logit_scale", 1.0, ""},
      {"hf_llama", "logit_scale", true, "logit_scale is true; expected 1"},
      {"hf_llama", "bias", true, "bias is true; expected false or no such key: attention_bias"},
      {"hf_llama", "use_qk_norm", true, "use_qk_norm is true; expected false"},
      {"hf_qwen3", "use_qk_norm", true, ""},
      {"hf_qwen3", "use_qk_norm", false, "use_qk_norm is false; expected true"},
      {"hf_llama", "no_rope_layers", {1, 1, 1}, ""},
      {"hf_llama", "no_rope_layers", {1, 1, 0}, "no_rope_layers is [1,1,0]; expected 1"},
      {"hf_llama", "layer_types", {"full_attention", "full_attention", "full_attention"}, ""},
      {"hf_llama", "layer_types", {"sliding_attention"}, "layer_types is [\"sliding_attention\"]"},
      {"hf_llama", "text_config", {{"hidden_size", 32}}, "text_config is {"},
      {"hf_llama", "pruned_heads", Json::object(), ""},
      {"hf_llama", "hidden_act", "swish", ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.directory) + " " + c.member + " " + c.value.dump());
    Json config = config_of(c.directory);
    config[c.member] = c.value;
    const std::string verdict = c.verdict;
    if (verdict.empty() || verdict == "named") {
      EXPECT_EQ(not_followed(config),
                verdict.empty() ? std::vector<std::string>{} : std::vector<std::string>{c.member});
      Json without = config;
      without.erase(c.member);
      EXPECT_TRUE(read(config) == read(without));
    } else {
      EXPECT_TRUE(refusal(config).starts_with("config.json: " + verdict)) << refusal(config);
    }
  }
}

// Python writes them, and reads them.
TEST(HfMembers, NumbersThatAreNone) {
  Json config = config_of("hf_llama");
  config["time_step_limit"] = "PLACE";
  std::string text = config.dump();
  const std::string old = "\"PLACE\"";
  text.replace(text.find(old), old.size(), "[0.0, Infinity, -Infinity, NaN, \"a \\\" NaN\"]");
  EXPECT_EQ(parse_hf_config(text, "config.json").not_followed,
            std::vector<std::string>{"time_step_limit"});
  config.erase("time_step_limit");
  config["rms_norm_eps"] = "PLACE";
  text = config.dump();
  text.replace(text.find(old), old.size(), "NaN");
  EXPECT_EQ(
      testing_support::message_of(ErrorKind::kData, [&] { parse_hf_config(text, "config.json"); }),
      "config.json: rms_norm_eps is \"NaN\"; expected a number above 0");
}

class HfMembersDirectory : public HfDirectoryTest {};

TEST_F(HfMembersDirectory, AreNamedOnceInOneLine) {
  const std::string path = root / "model";
  std::filesystem::copy(test_data("hf_llama"), path);
  Json config = config_of("hf_llama");
  config["sliding_window"] = 8, config["mystery\n"] = true;
  spill(path + "/config.json", config.dump());
  std::vector<std::string> lines;
  Log log{[&](std::string_view line) { lines.emplace_back(line); }};
  find_model(*files, path, log);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  EXPECT_TRUE(lines[0].starts_with("warning: " + path + "/config.json: not followed: mystery"))
      << lines[0];
  EXPECT_TRUE(lines[0].ends_with(", sliding_window; the model runs as if the file did not say so"))
      << lines[0];
}

// docs/hugging-face.md has every row of both tables.
TEST(HfMembers, ThePageHasTheTables) {
  const std::string page = slurp(test_data("../../docs/hugging-face.md"));
  std::set<std::string> rows;
  for (const HarmlessMember& member : harmless_members()) rows.emplace(member.name);
  for (const NeutralMember& member : neutral_members()) rows.emplace(member.name);
  for (const std::string& name : rows)
    EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
}

}  // namespace
}  // namespace ashlar::models
