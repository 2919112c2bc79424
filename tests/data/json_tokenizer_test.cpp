// tokenizer.json against the tokenizers library 0.23.3, which made tests/fixtures/tokenizers: the
// ids of texts, and the texts that the ids decode to.
#include "ashlar/data/hf/json_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/core/threads.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/chat_files.h"
#include "ashlar/data/hf_tokenizer.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/stream_decoder.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

using json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::string form_path(const std::string& form, const std::string& file) {
  return ASHLAR_FIXTURES "/tokenizers/" + form + "/" + file;
}

std::unique_ptr<Tokenizer> form_tokenizer(const std::string& form) {
  return load_tokenizer(*posix_files(), form_path(form, "tokenizer.json"));
}

std::vector<json> form_cases(const std::string& form) {
  std::ifstream lines(form_path(form, "cases.jsonl"));
  std::vector<json> cases;
  for (std::string line; std::getline(lines, line);) cases.push_back(json::parse(line));
  return cases;
}

// A small tokenizer.json whose members a test replaces.
json small_file() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "u", "fuse_unk": false, "byte_fallback": false,
      "vocab": {"u": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, " ": 6, "A": 7},
      "merges": [["a", "b"], ["ab", "c"]]}})");
}

std::unique_ptr<Tokenizer> small(const json& file) {
  return parse_json_tokenizer(file.dump(), "small.json");
}

json added_token(const char* content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

class JsonForms : public testing::TestWithParam<const char*> {};

TEST_P(JsonForms, EncodesAsTheLibrary) {
  const auto tokenizer = form_tokenizer(GetParam());
  const std::vector<json> cases = form_cases(GetParam());
  ASSERT_GE(cases.size(), 113u);
  for (const json& one : cases) {
    const std::string text = one["text"];
    EXPECT_EQ(tokenizer->encode(text), one["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->encode_with_special(text), one.value("special", one["ids"]).get<Ids>())
        << text;
    EXPECT_EQ(tokenizer->encode(text), one["ids"].get<Ids>()) << "remembered: " << text;
  }
}

TEST_P(JsonForms, DecodesAsTheLibrary) {
  const auto tokenizer = form_tokenizer(GetParam());
  for (const json& one : form_cases(GetParam())) {
    const Ids ids = one["ids"];
    const std::string decoded = one.value("decoded", one["text"]);
    EXPECT_EQ(tokenizer->decode(ids), decoded);
    EXPECT_EQ(tokenizer->decode(ids, true), one.value("skipping", decoded));
  }
}

// The parts that a stream gives, joined, are the text.
TEST_P(JsonForms, StreamsWhatItDecodes) {
  const auto tokenizer = form_tokenizer(GetParam());
  StreamDecoder stream(*tokenizer);
  for (const json& one : form_cases(GetParam())) {
    std::string text;
    for (const int32_t id : one["ids"].get<Ids>()) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), one.value("decoded", one["text"]).get<std::string>());
  }
}

// Pieces are spelled one by one; what decoding drops is at most the space before the first word.
TEST_P(JsonForms, PiecesJoinToTheText) {
  const auto tokenizer = form_tokenizer(GetParam());
  for (const json& one : form_cases(GetParam())) {
    if (one.contains("skipping")) continue;  // it has special tokens
    std::string text;
    for (const int32_t id : one["ids"].get<Ids>()) text += tokenizer->piece(id);
    const std::string wanted = one.value("decoded", one["text"]);
    if (text != wanted) {
      EXPECT_EQ(text, " " + wanted);
    }
  }
}

TEST_P(JsonForms, SurvivesItsOwnBytes) {
  const auto tokenizer = form_tokenizer(GetParam());
  const auto again = parse_tokenizer(tokenizer->bytes(), "again");
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->eos_id(), tokenizer->eos_id());
  const std::string text = "The mason sets 12 stones.\n";
  EXPECT_EQ(again->encode(text), tokenizer->encode(text));
}

TEST_P(JsonForms, EncodesOnSeveralThreads) {
  const auto tokenizer = form_tokenizer(GetParam());
  const std::vector<json> cases = form_cases(GetParam());
  Threads threads(4);
  std::vector<Ids> ids(cases.size());
  parallel_for(threads, int64_t(cases.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = size_t(begin); i < size_t(end); ++i)
      ids[i] = tokenizer->encode(cases[i]["text"].get_ref<const std::string&>());
  });
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(ids[i], cases[i]["ids"].get<Ids>());
}

INSTANTIATE_TEST_SUITE_P(Files, JsonForms,
                         testing::Values("gpt2", "llama3", "qwen", "llama2", "unigram",
                                         "wordpiece"));

TEST(JsonTokenizer, NumbersWithoutATokenHaveNoBytes) {
  json file = small_file();
  file["model"]["vocab"]["z"] = 20;
  const auto tokenizer = small(file);
  EXPECT_EQ(tokenizer->piece(20), "z");
  EXPECT_EQ(tokenizer->piece(15), "");
  EXPECT_THROW(tokenizer->piece(21), Error);
}

// Against sentencepiece, by the form that exports for transformers have.
TEST(JsonTokenizer, ReadsWhatIsWrittenForTransformers) {
  Log log([](std::string_view) {});
  TokenizerTraining training;
  training.vocab_size = 400;
  const std::vector<std::string> inputs{kVectors + "stones.txt"};
  const auto model =
      parse_tokenizer(train_sentencepiece(*posix_files(), inputs, training, log), "model");
  std::map<std::string, std::string> files;
  for (const auto& [name, text] : to_hf_tokenizer(*model, model->bos_id()).files)
    files[name] = text;
  const auto tokenizer = tokenizer_among(files, "exported");
  EXPECT_EQ(tokenizer->bos_id(), model->bos_id());
  EXPECT_EQ(tokenizer->eos_id(), model->eos_id());
  EXPECT_EQ(tokenizer->pad_id(), model->pad_id());
  EXPECT_EQ(tokenizer->vocab_size(), model->vocab_size());
  std::ifstream lines(inputs[0]);
  for (std::string line; std::getline(lines, line);) {
    line += "\n  \xF0\x9F\xA7\xB1 x";
    EXPECT_EQ(tokenizer->encode(line), model->encode(line)) << line;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(line)), line);
  }
}

// Long documents are encoded in parts.
TEST(JsonTokenizer, EncodesPartsAsTheWhole) {
  const std::string text = read_text(*posix_files(), kVectors + "stones.txt");
  for (const char* form : {"gpt2", "llama3", "qwen", "unigram", "wordpiece"}) {
    const auto tokenizer = form_tokenizer(form);
    Ids ids;
    for (size_t at = 0; at < text.size();) {
      const std::string_view rest = std::string_view(text).substr(at);
      const std::string_view part =
          rest.substr(0, rest.size() > 300 ? part_of(rest.substr(0, 300)) : rest.size());
      const Ids more = at > 0 ? tokenizer->encode_more(part) : tokenizer->encode(part);
      ids.insert(ids.end(), more.begin(), more.end());
      at += part.size();
    }
    EXPECT_EQ(ids, tokenizer->encode(text)) << form;
  }
}

// Documents of any kind are cut where that does not change their ids.
TEST(JsonTokenizer, EncodesIndependentPartsAsTheWhole) {
  const std::string text =
      read_text(*posix_files(), kVectors + "stones.txt") + "na\u00efve a\u0301 b  c\n d's e 12 f";
  int num_cuts = 0;
  for (const char* form : {"gpt2", "llama3", "qwen", "llama2", "wordpiece"}) {
    const auto tokenizer = form_tokenizer(form);
    for (size_t size = 1; size < text.size(); size += 97) {
      const std::string_view begin =
          std::string_view(text).substr(0, complete_utf8(text.substr(0, size)));
      const size_t cut = tokenizer->independent_part(begin);
      if (cut == 0) continue;
      ++num_cuts;
      Ids ids = tokenizer->encode(text.substr(0, cut));
      const Ids more = tokenizer->encode_more(text.substr(cut));
      ids.insert(ids.end(), more.begin(), more.end());
      ASSERT_EQ(ids, tokenizer->encode(text)) << form << " cut at " << cut;
    }
  }
  EXPECT_GT(num_cuts, 100);
}

TEST(JsonTokenizer, FindsIndependentPartsWhereWordsAre) {
  json file = small_file();
  const auto cut = [&] { return small(file)->independent_part("ab ab"); };
  EXPECT_EQ(cut(), 2u);
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(cut(), 0u) << "unknown characters in a row are one";
  file["model"]["fuse_unk"] = false;
  file["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_EQ(cut(), 2u);
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", " "}};
  EXPECT_EQ(cut(), 0u);
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "b a"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  EXPECT_EQ(cut(), 0u);
  file["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  EXPECT_EQ(cut(), 2u);
  for (const char* token : {"b a", "ANSWER", "<x"}) {
    file["added_tokens"] = json::array({added_token(token, 8)});
    EXPECT_EQ(cut(), 0u) << token;
  }
  file["added_tokens"] = json::array({added_token("<x>", 8)});
  EXPECT_EQ(cut(), 2u);
}

// The space in front of a text, and behind an added token, stands nowhere else.
TEST(JsonTokenizer, GoesOnInsideATextAsTheWhole) {
  const auto joined = [](Ids ids, const Ids& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  for (const char* form : {"llama2", "unigram"}) {
    const auto tokenizer = form_tokenizer(form);
    for (const std::string more : {"stone", " stone", "  of it</s>wall", "\n"}) {
      EXPECT_EQ(joined(tokenizer->encode("wall\n"), tokenizer->encode_more(more)),
                tokenizer->encode("wall\n" + more))
          << form << " " << more;
      const Ids before = tokenizer->encode("wall</s>");
      EXPECT_EQ(joined(before, tokenizer->encode_behind(before.back(), more)),
                tokenizer->encode("wall</s>" + more))
          << form << " " << more;
    }
  }
}

// T5's steps: every word gets a space in front, wherever it stands.
TEST(JsonTokenizer, GoesOnWithTheSpacesOfWords) {
  json file = json::parse(read_text(*posix_files(), form_path("unigram", "tokenizer.json")));
  file["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "WhitespaceSplit"},
      {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}]})");
  const auto tokenizer = small(file);
  Ids ids = tokenizer->encode("the wall");
  const Ids more = tokenizer->encode_more(" of stone");
  ids.insert(ids.end(), more.begin(), more.end());
  EXPECT_EQ(ids, tokenizer->encode("the wall of stone"));
}

TEST(JsonTokenizer, ReadsTheJsonOfADirectory) {
  const auto files = memory_files();
  files->make_directories("dir");
  write_file(*files, "dir/tokenizer.json", small_file().dump());
  EXPECT_EQ(load_tokenizer(*files, "dir")->name(), "dir/tokenizer.json");
  files->make_directories("none");
  EXPECT_TRUE(message_of(ErrorKind::kData, [&] {
                load_tokenizer(*files, "none");
              }).starts_with("none: the directory has neither tokenizer.model"));
}

TEST(JsonTokenizer, TakesTheNamesOfSpecialTokensFromFilesBesideIt) {
  json file = small_file();
  file["added_tokens"] = {added_token("<s>", 8), added_token("</s>", 9), added_token("<e>", 10)};
  const auto files = memory_files();
  files->make_directories("dir");
  write_file(*files, "dir/tokenizer.json", file.dump());
  const auto usual = load_tokenizer(*files, "dir/tokenizer.json");
  EXPECT_EQ(usual->bos_id(), 8);
  EXPECT_EQ(usual->eos_id(), 9);
  EXPECT_EQ(usual->pad_id(), 9);
  EXPECT_EQ(usual->unk_id(), 0);
  write_file(*files, "dir/special_tokens_map.json", R"({"eos_token": "</s>", "pad_token": "a"})");
  write_file(*files, "dir/tokenizer_config.json",
             R"({"eos_token": {"content": "<e>"}, "bos_token": null})");
  const auto stated = load_tokenizer(*files, "dir/tokenizer.json");
  EXPECT_EQ(stated->bos_id(), -1);
  EXPECT_EQ(stated->eos_id(), 10);
  EXPECT_EQ(stated->pad_id(), 1);
  EXPECT_EQ(parse_tokenizer(stated->bytes(), "copy")->eos_id(), 10);
  EXPECT_EQ(json_tokenizer_files(*stated).at("tokenizer.json"), file.dump());
  const Ordered names = {{"eos_token", "<e>"}, {"unk_token", "u"}, {"pad_token", "a"}};
  EXPECT_EQ(special_token_names(*files, "elsewhere", *stated), names);
  write_file(*files, "dir/tokenizer_config.json", R"({"eos_token": "nothing"})");
  EXPECT_NE(message_of(ErrorKind::kData, [&] { load_tokenizer(*files, "dir"); })
                .find("eos_token is \"nothing\", which is no token"),
            std::string::npos);
}

TEST(ChatFiles, OfADirectoryAloneCount) {
  const auto files = memory_files(), empty = memory_files();
  write_file(*files, "tokenizer_config.json", R"({"pad_token": "<pad>"})");
  EXPECT_EQ(special_token_names(*files, "", *byte_tokenizer()),
            special_token_names(*empty, "", *byte_tokenizer()));
  files->make_directories("dir");
  write_file(*files, "dir/tokenizer_config.json", "[]");
  const std::string fault = "dir/tokenizer_config.json: it is no JSON object";
  EXPECT_EQ(
      message_of(ErrorKind::kData, [&] { special_token_names(*files, "dir", *byte_tokenizer()); }),
      fault);
  EXPECT_EQ(message_of(ErrorKind::kData, [&] { load_chat_template(*files, "dir"); }), fault);
}

TEST(ChatFiles, TellWhetherSectionsBeginWithASpace) {
  const auto files = memory_files();
  files->make_directories("dir");
  const auto puts_space = [&](const json& step) {
    write_file(*files, "dir/tokenizer.json", json{{"pre_tokenizer", step}}.dump());
    return puts_space_behind_special_tokens(*files, "dir");
  };
  json step = {{"type", "Metaspace"}, {"replacement", "▁"}};
  EXPECT_TRUE(puts_space(step));
  step["add_prefix_space"] = false;
  EXPECT_FALSE(puts_space(step));
  step = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  EXPECT_FALSE(puts_space(step));
}

// Longer parts than the merges look through one after the other, and unknown characters.
TEST(JsonTokenizer, MergesLongPartsAsShortOnes) {
  const auto tokenizer = small(small_file());
  std::string text;
  Ids expected;
  for (int i = 0; i < 200; ++i) {
    text += "abcabx";
    expected.insert(expected.end(), {5, 4, 0});
    EXPECT_EQ(tokenizer->encode(text), expected) << i;
  }
}

TEST(JsonTokenizer, FindsAddedTokensByTheirFlags) {
  json file = small_file();
  file["normalizer"] = {{"type", "Lowercase"}};
  json left = added_token("<l>", 8), word = added_token("cab", 9), lower = added_token("AA", 10);
  left["lstrip"] = true;
  word["single_word"] = true;
  lower["normalized"] = true;
  lower["special"] = false;
  file["added_tokens"] = {left, word, lower};
  const auto tokenizer = small(file);
  EXPECT_EQ(tokenizer->encode("a  <l> a"), (Ids{1, 8, 6, 1}));
  EXPECT_EQ(tokenizer->encode("cab cabb"), (Ids{9, 6, 3, 4, 2}));
  EXPECT_EQ(tokenizer->encode("AaB"), (Ids{10, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{8, 10, 9}), "<l>aacab");
  EXPECT_EQ(tokenizer->decode(Ids{8, 10, 9}, true), "aa");
  EXPECT_TRUE(tokenizer->reads_added_tokens());
}

TEST(JsonTokenizer, RepairsTextThatIsNotUtf8) {
  const auto tokenizer = form_tokenizer("gpt2");
  EXPECT_EQ(tokenizer->encode("a\xFF"), tokenizer->encode("a\xEF\xBF\xBD"));
}

// The library reads none of these either, or Ashlar does not do what they ask for.
TEST(JsonTokenizer, NamesWhatItDoesNotKnow) {
  const auto message = [](const char* pointer, const json& value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = value;
    return message_of(ErrorKind::kData, [&] { small(file); });
  };
  const std::pair<const char*, json> cases[] = {
      {"/version", "2.0"},
      {"/frobnicator", 1},
      {"/model/type", "WordLevel"},
      {"/model/dropout", 0.1},
      {"/model/unk_token", "nothing"},
      {"/model/merges", json::array({json::array({"a", "x"})})},
      {"/model/vocab", {{"a", -1}}},
      {"/model/vocab", {{"a", 2000000000}}},
      {"/normalizer", {{"type", "Rot13"}}},
      {"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}},
      {"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}},
      {"/post_processor", {{"type", "Unheard"}}},
      {"/decoder", {{"type", "CTC"}}},
      {"/added_tokens", json::array({added_token("x", 77)})},
      {"/added_tokens", {added_token("x", 8), added_token("x", 8)}},
      {"/added_tokens", json::array({{{"id", 8}}})},
  };
  for (const auto& [pointer, value] : cases)
    EXPECT_TRUE(message(pointer, value).starts_with("small.json: ")) << pointer << " " << value;
  EXPECT_NE(message("/decoder", {{"type", "CTC"}}).find("CTC"), std::string::npos);
  EXPECT_NE(message("/added_tokens", json::array({added_token("x", 77)})).find("expected 8"),
            std::string::npos);
}

json split_by(const std::string& expression) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", expression}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

// Syntax that Oniguruma and PCRE2 read differently, or that one of them does not read.
TEST(JsonTokenizer, RefusesRegularExpressionsThatItCannotFollow) {
  for (const char* expression : {"[a&&b]",
                                 "[[a]b]",
                                 "(?<name>a)",
                                 "a(?i)b",
                                 "\\X",
                                 "\\K",
                                 "(?x: a)",
                                 "\\1",
                                 "[",
                                 "(",
                                 "a)",
                                 "\\p{Frobnicated}",
                                 "(?i:stra\xC3\x9F"
                                 "e)",
                                 "(?i:ss)",
                                 "a{2}{3}",
                                 "a**",
                                 "\\",
                                 "[b-a]",
                                 "(?i:\\p{Lu})",
                                 "[[:alpha:]]",
                                 "\\x{110000}",
                                 "*"}) {
    json file = small_file();
    file["pre_tokenizer"] = split_by(expression);
    EXPECT_TRUE(message_of(ErrorKind::kData, [&] { small(file); })
                    .starts_with("small.json: pre_tokenizer: Split: "))
        << expression;
  }
}

// Every way to cut the letters is tried before it turns out that no c follows them.
TEST(JsonTokenizer, GivesUpOnEndlessRegularExpressions) {
  json file = small_file();
  file["pre_tokenizer"] = split_by("(?:a|aa)+c");
  const auto tokenizer = small(file);
  EXPECT_EQ(tokenizer->encode("aac"), (Ids{1, 1, 3}));
  EXPECT_NE(message_of(ErrorKind::kData, [&] { tokenizer->encode(std::string(498, 'a') + "bc"); })
                .find("gives up on a text of 500 bytes"),
            std::string::npos);
}

TEST(JsonTokenizer, BoundsWhatItsStepsMakeOfAText) {
  json steps = json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  json file = small_file();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const auto tokenizer = small(file);
  EXPECT_NE(message_of(ErrorKind::kData, [&] { tokenizer->encode("a"); })
                .find("expected at most 134217728"),
            std::string::npos);
}

std::string to_base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | uint8_t(bytes[i + j]);
    for (const int shift : {18, 12, 6, 0}) out += kDigits[bits >> shift & 63];
  }
  return out;
}

// A normalizer whose trie holds "a" alone, with the replacement at 0.
json map_of_a(const std::string& replacement) {
  std::vector<uint32_t> units = {98 * 4};
  units.resize(1 + 98);
  units[1 + 'a'] = 'a' | 1 << 8 | 1 << 10;
  std::string map(reinterpret_cast<const char*>(units.data()), units.size() * 4);
  map += replacement;
  map.resize((map.size() + 2) / 3 * 3);
  return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(map)}};
}

// The library drops what follows in a cluster of up to five bytes; U+1ACF is a mark since Unicode
// 17.
TEST(JsonTokenizer, MapsClustersWithNewMarks) {
  json file = small_file();
  file["normalizer"] = map_of_a("b");
  EXPECT_EQ(small(file)->encode("a\u1ACF"), Ids{2});
  EXPECT_EQ(small(file)->encode("a\uA000"), (Ids{2, 0})) << "a letter begins a cluster";
}

TEST(JsonTokenizer, BoundsWhatAMapOfCharactersMakesOfAText) {
  json file = small_file();
  file["normalizer"] = map_of_a(std::string(3'000'000, 'b'));
  const auto tokenizer = small(file);
  EXPECT_NE(message_of(ErrorKind::kData, [&] { tokenizer->encode(std::string(50, 'a')); })
                .find("expected at most 134217728"),
            std::string::npos);
}

// U+10D50 is a letter since Unicode 16 and U+180E no space since 6.3, whatever PCRE2 thinks.
TEST(JsonTokenizer, FollowsUnicode16InRegularExpressions) {
  json file = small_file();
  file["model"]["vocab"] = {{"u", 0},
                            {"\xF0\x90\xB5\x90"
                             "a",
                             1},
                            {"\xE1\xA0\x8E", 2},
                            {"a", 3}};
  file["model"]["merges"] = json::array();
  file["model"]["ignore_merges"] = true;
  file["pre_tokenizer"] = split_by("\\p{L}+|\\s");
  EXPECT_EQ(small(file)->encode("\xF0\x90\xB5\x90"
                                "a"),
            Ids{1});
  file["pre_tokenizer"]["behavior"] = "Removed";
  EXPECT_EQ(small(file)->encode("a\xE1\xA0\x8E"
                                "a"),
            Ids{2});
}

}  // namespace
}  // namespace ashlar::data
