// Texts by the files beside a tokenizer, compared with the ids that AutoTokenizer of
// transformers 5.24 makes of "the cat" from the same files.
#include "ashlar/data/text_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/errors.h"

namespace ashlar::data {
namespace {

using nlohmann::json;
using testing_support::message_of;

json token(const char* name) {
  return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
}

json post_processor(bool before, bool after = false) {
  json single = json::array();
  if (before) single.push_back(token("<s>"));
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (after) single.push_back(token("</s>"));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", json::array()},
          {"special_tokens",
           {{"<s>", {{"id", "<s>"}, {"ids", {2}}, {"tokens", {"<s>"}}}},
            {"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}};
}

json tokenizer_json(const json& post) {
  return {{"version", "1.0"},
          {"added_tokens", json::array({{{"id", 2}, {"content", "<s>"}, {"special", true}}})},
          {"post_processor", post},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 5}, {"b", 299}, {"c", 7}}},
            {"merges", json::array({json::array({"a", "b"})})}}}};
}

json config(const json& add_bos) {
  json out{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  if (add_bos != "absent") out["add_bos_token"] = add_bos;
  return out;
}

TextFiles read(const NamedFiles& files) {
  return read_text_files(files, byte_tokenizer().get(), "DIR");
}

const json kByteLevel{{"type", "ByteLevel"}, {"trim_offsets", false}};
const json kBoth{{"type", "Sequence"}, {"processors", {kByteLevel, post_processor(true)}}};

TEST(TextFiles, ATextBeginsAsTransformersBeginsIt) {
  const json none;
  const struct {
    const char* name;
    std::optional<json> post_processor;  // of tokenizer.json, if it is there
    json add_bos;
    bool adds;
    size_t notes;
  } cases[] = {
      {"nothing said", {}, "absent", false, 0},
      {"null", {}, none, false, 0},
      {"true", {}, true, true, 0},
      {"false", {}, false, false, 0},
      {"no post-processor", none, "absent", false, 0},
      {"no post-processor, true", none, true, false, 1},
      {"byte level, true", kByteLevel, true, false, 1},
      {"template", post_processor(true), "absent", true, 0},
      {"template, true", post_processor(true), true, true, 0},
      {"template, false", post_processor(true), false, true, 1},
      {"template without it", post_processor(false), false, false, 0},
      {"template without it, true", post_processor(false), true, false, 1},
      {"template with an end", post_processor(true, true), true, true, 1},
      {"sequence", kBoth, "absent", true, 0},
      {"unknown", json{{"type", "BertProcessing"}}, false, false, 1},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    NamedFiles files{{"tokenizer_config.json", config(each.add_bos).dump()}};
    if (each.post_processor) files["tokenizer.json"] = tokenizer_json(*each.post_processor).dump();
    const TextFiles said = read(files);
    EXPECT_EQ(said.adds_bos, each.adds);
    EXPECT_EQ(said.bos_id, 2);
    EXPECT_EQ(said.notes.size(), each.notes) << (said.notes.empty() ? "" : said.notes[0]);
    EXPECT_EQ(said.num_ids, each.post_processor ? 300 : 260);
  }
}

TEST(TextFiles, FindTheIdOfTheToken) {
  const auto bos = [](const json& config, const json& special = json::object(),
                      const json& added = json::object()) {
    return read({{"tokenizer_config.json", config.dump()},
                 {"special_tokens_map.json", special.dump()},
                 {"added_tokens.json", added.dump()}})
        .bos_id;
  };
  const json object = json{{"content", "<s>"}, {"lstrip", false}};
  EXPECT_EQ(bos(json::object()), 2);  // the model's own
  EXPECT_EQ(bos({{"bos_token", object}}), 2);
  EXPECT_EQ(bos({{"bos_token", nullptr}}), -1);  // as in Qwen's files
  EXPECT_EQ(bos({{"bos_token", "<|begin|>"}}), -1);
  EXPECT_EQ(bos({{"bos_token", "<|begin|>"}}, json::object(), {{"<|begin|>", 300}}), 300);
  EXPECT_EQ(bos(json::object(), {{"bos_token", "</s>"}}), 1);
  EXPECT_EQ(bos({{"bos_token", "<s>"}}, {{"bos_token", "</s>"}}), 2);
  const json by_id{{"bos_token", "<|begin|>"},
                   {"added_tokens_decoder", {{"264", {{"content", "<|begin|>"}}}}}};
  EXPECT_EQ(bos(by_id), 264);
  EXPECT_EQ(read({}).bos_id, 2);
  EXPECT_EQ(read_text_files({}, nullptr, "DIR").bos_id, -1);
}

TEST(TextFiles, ListAddedTokensOfEveryFile) {
  json tokenizer = tokenizer_json(nullptr);
  tokenizer["added_tokens"].push_back({{"id", 300}, {"content", "<|im_start|>"}});
  const json by_id{
      {"added_tokens_decoder", {{"300", {{"content", "<|im_start|>"}}}, {"301", "<|im_end|>"}}}};
  const TextFiles said = read({{"tokenizer.json", tokenizer.dump()},
                               {"tokenizer_config.json", by_id.dump()},
                               {"added_tokens.json", R"({"<|x|>": 310})"}});
  EXPECT_EQ(said.added,
            (std::vector<AddedToken>{
                {2, "<s>"}, {300, "<|im_start|>"}, {301, "<|im_end|>"}, {310, "<|x|>"}}));
  EXPECT_EQ(said.num_ids, 311);
  const json unigram =
      json::parse(R"({"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2.0]]}})");
  EXPECT_EQ(read_text_files({{"tokenizer.json", unigram.dump()}}, nullptr, "DIR").num_ids, 2);
}

TEST(TextFiles, ErrorsNameTheFileAndTheMember) {
  const struct {
    const char *file, *text;
    std::vector<std::string> named;
  } cases[] = {
      {"tokenizer.json", "{", {"DIR/tokenizer.json: not valid JSON"}},
      {"tokenizer.json", "[]", {"DIR/tokenizer.json", "expected an object"}},
      {"tokenizer.json",
       R"({"added_tokens": [{"id": "x", "content": "a"}]})",
       {"DIR/tokenizer.json", "\"a\" has the id \"x\""}},
      {"tokenizer.json",
       R"({"post_processor": {"type": "TemplateProcessing"}})",
       {"DIR/tokenizer.json: post_processor", "'single' is missing"}},
      {"tokenizer.json",
       R"({"post_processor": {"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"SpecialToken": {"id": "<s>"}}]}})",
       {"DIR/tokenizer.json: post_processor", "'<s>' is missing"}},
      {"tokenizer_config.json",
       R"({"add_bos_token": 1})",
       {"DIR/tokenizer_config.json: add_bos_token is 1", "true or false"}},
      {"tokenizer_config.json",
       R"({"add_bos_token": true, "bos_token": "<|none|>"})",
       {"DIR/tokenizer_config.json", "bos_token \"<|none|>\" is neither"}},
      {"tokenizer_config.json",
       R"({"bos_token": 5})",
       {"DIR/tokenizer_config.json: bos_token is 5", "text of a token"}},
      {"tokenizer_config.json",
       R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
       {"DIR/tokenizer_config.json", "the added token \"a\" has the id"}},
      {"added_tokens.json", R"({"<|x|>": -3})", {"DIR/added_tokens.json", "-3"}},
  };
  for (const auto& each : cases) {
    const std::string message = message_of(ErrorKind::kData, [&] {
      read({{each.file, each.text}});
    });
    for (const std::string& word : each.named)
      EXPECT_NE(message.find(word), std::string::npos) << message;
  }
}

TEST(TextFiles, AreReadBesideTheTokenizer) {
  const auto files = memory_files();
  files->make_directories("models/a");
  const auto tokenizer = byte_tokenizer("models/a/tokenizer.model");
  EXPECT_EQ(text_files_beside(*files, *tokenizer).said_by, "");
  write_text(*files, "models/a/tokenizer_config.json", config(true).dump());
  const TextFiles said = text_files_beside(*files, *tokenizer);
  EXPECT_TRUE(said.adds_bos);
  EXPECT_EQ(said.said_by, "models/a/tokenizer_config.json: add_bos_token");
}

}  // namespace
}  // namespace ashlar::data
