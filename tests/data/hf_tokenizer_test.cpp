// Files that AutoTokenizer reads, held against sentencepiece: the JSON is applied to texts by the
// rules of the tokenizers library, written down here once more.
#include "ashlar/data/hf_tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "ashlar/core/utf8.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/sentencepiece_model.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

using json = nlohmann::json;
using Algorithm = SentencePieceModel::Algorithm;
using Type = SentencePieceModel::Type;

const std::vector<std::string> kHfTexts = {"",
                                           " ",
                                           "   ",
                                           "stone",
                                           " stone",
                                           "  two  spaces ",
                                           "The mason sets the lintel; 12 waits.",
                                           "line\nline\n\n\ttabbed\r\n",
                                           "\x01\x7F",
                                           "na\xC3\xAFve \xE6\xBC\xA2 \xF0\x9F\xA7\xB1 e\xCC\x81",
                                           "<s> </s><unk><pad>a<s>b",
                                           "<0x41> <0x 1 < 2",
                                           "\xE2\x96\x81 mark",
                                           "aaaaaaa-------      x"};

std::string trained_model(TokenizerTraining::Kind kind) {
  Log log([](std::string_view) {});
  TokenizerTraining training;
  training.kind = kind;
  training.vocab_size = 400;
  const std::vector<std::string> inputs{kVectors + "stones.txt"};
  return train_sentencepiece(*posix_files(), inputs, training, log);
}

json file_of(const HfTokenizer& written, const std::string& name) {
  for (const auto& [file, text] : written.files)
    if (file == name) return json::parse(text);
  ADD_FAILURE() << name << " is not written";
  return {};
}

std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size(); at += characters.back().size())
    characters.emplace_back(text.substr(at, utf8_step(text, at).length));
  return characters;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string normalized(const json& normalizer, std::string text) {
  if (normalizer.is_null()) return text;
  for (const json& step : normalizer["normalizers"]) {
    if (step["type"] == "Prepend") {
      if (!text.empty()) text.insert(0, step["prepend"].get<std::string>());
    } else {
      EXPECT_EQ(step["type"], "Replace");
      text = replaced(text, step["pattern"]["String"], step["content"]);
    }
  }
  return text;
}

void add_bytes(std::vector<int32_t>& ids, const std::map<std::string, int32_t>& vocab,
               const std::string& text) {
  for (const unsigned char byte : text) ids.push_back(vocab.at(fmt::format("<0x{:02X}>", byte)));
}

// The pair with the first rule is joined, the leftmost of equals, until there is none.
std::vector<int32_t> encode_bpe(const json& model, const std::string& text) {
  const std::map<std::string, int32_t> vocab = model["vocab"];
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (const json& rule : model["merges"]) ranks.emplace(std::pair(rule[0], rule[1]), ranks.size());
  std::vector<std::string> symbols = characters_of(text);
  while (true) {
    size_t best = ranks.size(), where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const auto at = ranks.find({symbols[i], symbols[i + 1]});
          at != ranks.end() && at->second < best) {
        best = at->second;
        where = i;
      }
    if (best == ranks.size()) break;
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + int64_t(where) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& symbol : symbols)
    if (const auto at = vocab.find(symbol); at != vocab.end())
      ids.push_back(at->second);
    else
      add_bytes(ids, vocab, symbol);
  return ids;
}

// The cut with the highest sum of scores over all entries of the vocabulary, special ones too.
std::vector<int32_t> encode_unigram(const json& model, const std::string& text) {
  std::map<std::string, int32_t> vocab;
  double least = std::numeric_limits<double>::max();
  for (const json& entry : model["vocab"]) {
    vocab.emplace(entry[0], static_cast<int32_t>(vocab.size()));
    least = std::min<double>(least, entry[1]);
  }
  struct Node {
    double score = -std::numeric_limits<double>::infinity();
    size_t from = 0;
    int32_t id = -1;  // -1: a character without a piece
  };
  std::vector<Node> best(text.size() + 1);
  best[0].score = 0;
  for (size_t at = 0; at < text.size(); at += utf8_step(text, at).length) {
    const size_t one = utf8_step(text, at).length;
    const auto offer = [&](size_t length, double score, int32_t id) {
      Node& node = best[at + length];
      if (best[at].score + score > node.score) node = {best[at].score + score, at, id};
    };
    if (!vocab.contains(text.substr(at, one))) offer(one, least - 10, -1);
    for (size_t length = 1; at + length <= text.size(); ++length)
      if (const auto entry = vocab.find(text.substr(at, length)); entry != vocab.end())
        offer(length, model["vocab"][size_t(entry->second)][1], entry->second);
  }
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end = best[end].from) ends.push_back(end);
  std::vector<int32_t> ids;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end)
    if (const Node& node = best[*end]; node.id >= 0)
      ids.push_back(node.id);
    else
      add_bytes(ids, vocab, text.substr(node.from, *end - node.from));
  return ids;
}

std::vector<int32_t> encode(const json& file, const std::string& text) {
  EXPECT_TRUE(file["pre_tokenizer"].is_null());
  EXPECT_TRUE(file["post_processor"].is_null());
  const json& model = file["model"];
  const std::string ready = normalized(file["normalizer"], text);
  return model["type"] == "BPE" ? encode_bpe(model, ready) : encode_unigram(model, ready);
}

std::string decode(const json& file, const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  const json& vocab = file["model"]["vocab"];
  std::vector<std::string> names(size_t(tokenizer.vocab_size()));
  if (vocab.is_array())
    for (size_t id = 0; id < names.size(); ++id) names[id] = vocab[id][0];
  else
    for (const auto& [name, id] : vocab.items()) names[id.get<size_t>()] = name;
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(names[size_t(id)]);
  for (const json& step : file["decoder"]["decoders"]) {
    if (step["type"] == "Replace") {
      for (std::string& part : parts)
        part = replaced(part, step["pattern"]["String"], step["content"]);
    } else if (step["type"] == "ByteFallback") {
      for (std::string& part : parts)
        if (part.size() == 6 && part.starts_with("<0x"))
          part = std::string(1, char(std::stoi(part.substr(3, 2), nullptr, 16)));
    } else if (step["type"] == "Fuse") {
      std::string all;
      for (const std::string& part : parts) all += part;
      parts = {all};
    } else {
      EXPECT_EQ(step, (json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}));
      if (parts[0].starts_with(' ')) parts[0].erase(0, 1);
    }
  }
  return parts[0];
}

class HfTokenizerTest : public testing::TestWithParam<TokenizerTraining::Kind> {};

TEST_P(HfTokenizerTest, EncodesAndDecodesAsTheModelThatItIsMadeOf) {
  const auto tokenizer = parse_tokenizer(trained_model(GetParam()), "trained");
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, -1);
  const json file = file_of(written, "tokenizer.json");
  for (const std::string& text : kHfTexts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(encode(file, text), ids) << text;
    EXPECT_EQ(decode(file, *tokenizer, ids), tokenizer->decode(ids));
  }
}

TEST_P(HfTokenizerTest, NamesTheSpecialIdsAndAddsNone) {
  const auto tokenizer = parse_tokenizer(trained_model(GetParam()), "trained");
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, -1);
  const json special = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  EXPECT_EQ(file_of(written, "special_tokens_map.json"), special);
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", false},
                 {"add_eos_token", false},
                 {"clean_up_tokenization_spaces", false},
                 {"split_special_tokens", true}};
  config.update(special);
  EXPECT_EQ(file_of(written, "tokenizer_config.json"), config);
  const json added = file_of(written, "tokenizer.json")["added_tokens"];
  ASSERT_EQ(added.size(), 4u);
  for (size_t id = 0; id < 4; ++id) {
    EXPECT_EQ(added[id]["id"], id);
    EXPECT_EQ(added[id]["special"], true);
  }
  EXPECT_EQ(added[1]["content"], "</s>");
}

// AutoTokenizer of transformers 4.57 goes by the post-processor of such a class, 5.24 too.
TEST_P(HfTokenizerTest, PutsTheBeginningOfTrainingInFront) {
  const auto tokenizer = parse_tokenizer(trained_model(GetParam()), "trained");
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, 2);
  EXPECT_EQ(file_of(written, "tokenizer_config.json")["add_bos_token"], true);
  EXPECT_EQ(file_of(written, "tokenizer.json")["post_processor"],
            json::parse(R"({"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                           {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                         {"Sequence": {"id": "A", "type_id": 0}},
                         {"SpecialToken": {"id": "<s>", "type_id": 1}},
                         {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}})"));
  // An id that is no control piece cannot be named there.
  const HfTokenizer added = to_hf_tokenizer(*tokenizer, 5000);
  EXPECT_EQ(file_of(added, "tokenizer_config.json")["add_bos_token"], false);
  EXPECT_TRUE(file_of(added, "tokenizer.json")["post_processor"].is_null());
  EXPECT_EQ(added.unstated.size(), written.unstated.size() + 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HfTokenizerTest,
                         testing::Values(TokenizerTraining::Kind::kBpe,
                                         TokenizerTraining::Kind::kUnigram));

// A model of spm_train without the space in front: bpe, identity, byte_fallback.
TEST(HfTokenizer, FollowsAModelWithoutADummyPrefix) {
  const auto tokenizer = load_tokenizer(*posix_files(), kVectors + "bpe_no_prefix.model");
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, -1);
  EXPECT_TRUE(written.unstated.empty()) << written.unstated.front();
  const json file = file_of(written, "tokenizer.json");
  EXPECT_EQ(file["normalizer"]["normalizers"],
            json::parse(R"([{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}])"));
  EXPECT_EQ(file["decoder"]["decoders"].back()["type"], "Fuse");
  for (const std::string& text : kHfTexts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(encode(file, text), ids) << text;
    EXPECT_EQ(decode(file, *tokenizer, ids), tokenizer->decode(ids));
  }
}

// A model of spm_train: unigram, identity, byte_fallback.
TEST(HfTokenizer, RemovesExtraWhitespaceAsTheModelDoes) {
  const auto tokenizer = load_tokenizer(*posix_files(), kVectors + "unigram_default.model");
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, -1);
  ASSERT_EQ(written.unstated.size(), 1u);
  EXPECT_TRUE(written.unstated[0].starts_with("model_type=unigram where two cuts"));
  const json steps = file_of(written, "tokenizer.json")["normalizer"]["normalizers"];
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0]["pattern"]["Regex"], "\\A +");
  EXPECT_EQ(steps[1]["pattern"]["Regex"], " {2,}");
  EXPECT_EQ(steps[2]["pattern"]["String"], " ");
  EXPECT_EQ(steps[3]["pattern"]["Regex"], "(▁)+\\z");
  EXPECT_EQ(steps[4]["prepend"], "▁");
  EXPECT_EQ(steps[5]["pattern"]["String"], "<");
  EXPECT_EQ(file_of(written, "special_tokens_map.json")["pad_token"], "</s>") << "it has no pad";
}

TEST(HfTokenizer, NamesTheNormalizationThatItCannotFollow) {
  std::string model;
  const std::unordered_map<std::string, std::string> settings{{"input", kVectors + "stones.txt"},
                                                              {"model_type", "bpe"},
                                                              {"vocab_size", "80"},
                                                              {"hard_vocab_limit", "false"},
                                                              {"minloglevel", "3"}};
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(settings, nullptr, &model).ok());
  const HfTokenizer written = to_hf_tokenizer(*parse_tokenizer(model, "model"), -1);
  EXPECT_EQ(written.unstated, std::vector<std::string>{"normalization_rule_name=nmt_nfkc"});
  const json file = file_of(written, "tokenizer.json");
  EXPECT_EQ(file["normalizer"]["normalizers"][0]["type"], "Precompiled");
  EXPECT_GT(file["normalizer"]["normalizers"][0]["precompiled_charsmap"].get<std::string>().size(),
            100'000u);
  EXPECT_EQ(file["decoder"]["decoders"][0],
            json::parse(R"({"type": "Replace", "pattern": {"String": "<unk>"},
                            "content": "▁⁇▁"})"));
}

TEST(HfTokenizer, SpellsTheByteTokenizer) {
  const auto tokenizer = byte_tokenizer();
  const HfTokenizer written = to_hf_tokenizer(*tokenizer, -1);
  EXPECT_TRUE(written.unstated.empty());
  const json file = file_of(written, "tokenizer.json");
  EXPECT_EQ(file["pre_tokenizer"]["type"], "ByteLevel");
  EXPECT_EQ(file["pre_tokenizer"]["use_regex"], false);
  EXPECT_EQ(file["decoder"]["type"], "ByteLevel");
  const json& vocab = file["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 260u);
  // GPT-2's characters for bytes.
  for (const auto& [character, byte] : std::map<std::string, int>{
           {"A", 'A'}, {"Ġ", ' '}, {"Ċ", '\n'}, {"Ā", 0}, {"ÿ", 255}, {"Ń", 0xAD}, {"ġ", 0x7F}})
    EXPECT_EQ(vocab[character], 4 + byte) << character;
  EXPECT_EQ(vocab["</s>"], 1);
  EXPECT_TRUE(file["model"]["merges"].empty());
}

TEST(SentencePieceModel, HoldsWhatTheModelWasTrainedWith) {
  const SentencePieceModel bpe =
      read_sentencepiece_model(trained_model(TokenizerTraining::Kind::kBpe), "bpe");
  EXPECT_EQ(bpe.algorithm, Algorithm::kBpe);
  EXPECT_TRUE(bpe.byte_fallback && bpe.add_dummy_prefix && bpe.escape_whitespaces);
  EXPECT_FALSE(bpe.remove_extra_whitespaces || bpe.treat_whitespace_as_suffix);
  EXPECT_EQ(bpe.normalization_rule_name, "identity");
  EXPECT_TRUE(bpe.precompiled_charsmap.empty());
  ASSERT_EQ(bpe.pieces.size(), 400u);
  EXPECT_EQ(bpe.pieces[1].text, "</s>");
  EXPECT_EQ(bpe.pieces[1].type, Type::kControl);
  EXPECT_EQ(bpe.pieces[3].type, Type::kUnknown);
  EXPECT_EQ(bpe.pieces[4].type, Type::kByte);
  EXPECT_EQ(bpe.pieces[261].type, Type::kNormal);
  EXPECT_EQ(bpe.pieces[261].score, -1);
}

TEST(SentencePieceModel, RefusesACutMessage) {
  const std::string model = trained_model(TokenizerTraining::Kind::kBpe);
  const std::string message = message_of(ErrorKind::kData, [&] {
    read_sentencepiece_model(std::string_view(model).substr(0, model.size() - 1), "cut.model");
  });
  EXPECT_TRUE(message.starts_with("cut.model: not a sentencepiece model")) << message;
}

// Texts that meet each of these settings are cut otherwise by the tokenizers library.
TEST(HfTokenizer, NamesEverySettingThatItCannotFollow) {
  const auto varint = [](size_t n) {
    return n < 128 ? std::string(1, char(n)) : std::string{char((n & 127) | 128), char(n >> 7)};
  };
  const auto member = [&](int number, const std::string& content) {
    return std::string(1, char(number << 3 | 2)) + varint(content.size()) + content;
  };
  const auto piece = [&](const std::string& text, char type) {
    return member(1, member(1, text) + std::string("\x15\0\0\x80\xBF\x18", 6) + type);  // score -1
  };
  const std::string base = piece("<unk>", 2) + piece("</s>", 3) + piece("a", 1) + piece("ab", 1);
  const std::string identity = member(3, member(1, "identity"));
  for (const auto& [model, expected] : std::vector<std::pair<std::string, std::string>>{
           {base + member(2, "\x18\x02"), "pieces with characters that are no pieces"},
           {base + piece("foo", 4), "user_defined_symbols"},
           {base + piece("b", 5), "unused pieces"},
           {base + piece("[CLS]", 3), "control_symbols that a text can hold"},
           {base + piece("ba", 1) + member(2, "\x18\x02"), "pieces with equal scores"},
           {base + member(2, "\x18\x03"), "model_type=word"},
           {base + member(2, std::string("\xC0\x01\x01", 3)), "treat_whitespace_as_suffix=true"},
           {base + member(3, std::string("\x28\0", 2)), "escape_whitespaces=false"}}) {
    const auto tokenizer = parse_tokenizer(
        model.find("identity") == std::string::npos && expected != "escape_whitespaces=false"
            ? model + identity
            : model,
        expected);
    const std::vector<std::string> unstated = to_hf_tokenizer(*tokenizer, -1).unstated;
    EXPECT_NE(std::ranges::find(unstated, expected), unstated.end()) << expected;
  }
}

}  // namespace
}  // namespace ashlar::data
