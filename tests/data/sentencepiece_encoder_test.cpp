// The ids of the own encoder against those of Debian's sentencepiece.
#include "ashlar/data/sentencepiece_encoder.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <cstring>
#include <map>
#include <random>

#include "ashlar/core/utf8.h"
#include "ashlar/data/pair_merges.h"
#include "ashlar/data/piece_borders.h"
#include "ashlar/data/sentencepiece.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

using Model = SentencePieceModel;
using Ids = std::vector<int32_t>;

std::string learned_model(TokenizerTraining::Kind kind) {
  Log log([](std::string_view) {});
  TokenizerTraining training;
  training.kind = kind;
  training.vocab_size = 420;
  const std::vector<std::string> inputs{kVectors + "stones.txt"};
  return train_sentencepiece(*posix_files(), inputs, training, log);
}

std::string field(int number, std::string_view bytes) {  // of a message, below 16 KiB
  const size_t size = bytes.size();
  std::string all{char(number << 3 | 2)};
  if (size >= 128) all += char(0x80 | (size & 0x7F));
  all += char(size >= 128 ? size >> 7 : size);
  return all.append(bytes);
}

std::string piece_field(std::string_view text, float score, Model::Type type) {
  std::string number(4, '\0');
  std::memcpy(number.data(), &score, 4);
  return field(1, field(1, text) + "\x15" + number + "\x18" + char(type));
}

// A model of <unk>, </s> and pieces, which keeps spaces and puts one in front.
std::string model_of(Model::Algorithm algorithm,
                     const std::vector<std::pair<std::string, float>>& pieces) {
  std::string bytes = piece_field("<unk>", 0, Model::Type::kUnknown) +
                      piece_field("</s>", 0, Model::Type::kControl);
  for (const auto& [text, score] : pieces) bytes += piece_field(text, score, Model::Type::kNormal);
  bytes += field(2, std::string("\x18") + char(algorithm));
  return bytes + field(3, std::string("\x18\x01\x20\x00\x28\x01", 6));
}

// Words, characters of all planes, spaces, and runs of `letters`.
std::string random_text(std::mt19937_64& random, std::string_view letters) {
  static constexpr std::string_view kWords[] = {"stone",
                                                " of ",
                                                " the",
                                                "\n",
                                                "  ",
                                                "12",
                                                ", ",
                                                "\t",
                                                "\xE2\x96\x81",
                                                "<s>",
                                                std::string_view("\0", 1)};
  std::string text;
  const auto below = [&](uint64_t most) { return random() % most; };
  for (uint64_t parts = 1 + below(60); parts > 0; --parts) {
    const uint64_t kind = below(8);
    if (kind == 0) {
      const auto value = uint32_t(below(0x110000));
      append_code_point(text, value >= 0xD800 && value < 0xE000 ? 0x5C71 : value);
    } else if (kind < 4) {
      text += kWords[below(std::size(kWords))];
    } else {
      for (uint64_t count = 1 + below(9); count > 0; --count)
        text += letters[below(letters.size())];
    }
  }
  return text;
}

void expect_as_library(const std::string& model, std::string_view letters, int num_texts) {
  const Model read = read_sentencepiece_model(model, "model");
  const auto encoder = make_sentencepiece_encoder(read);
  ASSERT_TRUE(encoder);
  const auto tokenizer = parse_sentencepiece(model, "model");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  std::mt19937_64 random(1);
  for (int i = 0; i < num_texts; ++i) {
    const std::string text = random_text(random, letters);
    const Ids ids = tokenizer->encode(text);
    ASSERT_EQ(ids, library.EncodeAsIds(text)) << text;
    const size_t cut = encoder->independent_part(text);
    const std::string_view all = text;
    Ids parts = encoder->encode(all.substr(0, cut), read.add_dummy_prefix);
    const Ids rest = encoder->encode(all.substr(cut), cut == 0 && read.add_dummy_prefix);
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_EQ(parts, ids) << text << " cut at " << cut;
  }
}

TEST(SentencePieceEncoder, HasTheIdsOfTheLibrary) {
  expect_as_library(learned_model(TokenizerTraining::Kind::kBpe), "etaonshr", 400);
  expect_as_library(learned_model(TokenizerTraining::Kind::kUnigram), "etaonshr", 400);
  expect_as_library(read_text(*posix_files(), kVectors + "bpe_no_prefix.model"), "etaon", 100);
}

// Nearly every cut of a run of these letters has the same sum, but for roundings.
TEST(SentencePieceEncoder, RoundsUnigramSumsAsTheLibrary) {
  std::vector<std::pair<std::string, float>> pieces;
  for (const char* text : {"a", "b", "c", "ab", "bc", "ca", "aa", "abc", "bca", "\xE2\x96\x81",
                           "\xE2\x96\x81"
                           "a",
                           "\xE2\x96\x81"
                           "ab"})
    pieces.emplace_back(text, -1.1f * float(num_characters(text)));
  expect_as_library(model_of(Model::Algorithm::kUnigram, pieces), "abc", 400);
}

// Equal scores, characters that are only parts of pieces, and unknown ones in a row.
TEST(SentencePieceEncoder, MergesAsTheLibrary) {
  expect_as_library(model_of(Model::Algorithm::kBpe, {{"ab", 0},
                                                      {"bc", 0},
                                                      {"abc", -1},
                                                      {"cab", -1},
                                                      {"aa", -2},
                                                      {"\xE2\x96\x81"
                                                       "a",
                                                       -1},
                                                      {"c", -3},
                                                      {"a", -4}}),
                    "abcd", 400);
}

TEST(SentencePieceEncoder, LeavesOtherModelsToTheLibrary) {
  const std::vector<std::pair<std::string, float>> pieces{{"a", -1}};
  const auto makes = [](std::string bytes) {
    return make_sentencepiece_encoder(read_sentencepiece_model(bytes, "model")) != nullptr;
  };
  const std::string plain = model_of(Model::Algorithm::kBpe, pieces);
  EXPECT_TRUE(makes(plain));
  EXPECT_FALSE(makes(plain + piece_field("bb", 0, Model::Type::kUserDefined)));
  EXPECT_FALSE(makes(plain + piece_field("bb", 0, Model::Type::kUnused)));
  EXPECT_FALSE(makes(plain + piece_field("#", 0, Model::Type::kControl)));
  EXPECT_FALSE(makes(model_of(Model::Algorithm::kBpe, {{std::string(257, 'a'), 0}})));
  EXPECT_FALSE(makes(plain + field(3, "\x20\x01"))) << "drops spaces";
  EXPECT_FALSE(makes(plain + field(3, field(2, "map")))) << "replaces characters";
  EXPECT_FALSE(makes(model_of(Model::Algorithm::kWord, pieces)));
  const auto from_file = [&](const char* name) {
    return makes(read_text(*posix_files(), kVectors + name));
  };
  EXPECT_FALSE(from_file("unigram_default.model"));
}

TEST(PieceBorders, AreWhereNoPieceGoesOn) {
  PieceBorders borders;
  borders.add("\xE2\x96\x81stone");
  borders.add("\xE5\xB1\xB1\xE6\xB2\xB3");
  std::vector<std::string> parts;
  borders.for_each_part(" stone stone\n\xE6\xB2\xB3\xE5\xB1\xB1ton",
                        [&](std::string_view part) { parts.emplace_back(part); });
  EXPECT_EQ(parts, (std::vector<std::string>{" stone", " stone", "\n", "\xE6\xB2\xB3\xE5\xB1\xB1",
                                             "ton"}));
  EXPECT_EQ(borders.last_before_end("ton ston"), 3u);
  EXPECT_EQ(borders.last_before_end("stone"), 0u);
}

// Long parts are merged with a queue, whose result the definition gives as well.
TEST(PairMerges, FollowTheirDefinition) {
  PairMerges merges(64);
  std::map<std::pair<int32_t, int32_t>, std::pair<uint32_t, int32_t>> rules;
  std::mt19937_64 random(2);
  for (int32_t joined = 3; joined < 40; ++joined) {
    const auto left = int32_t(random() % uint64_t(joined));
    const auto right = int32_t(random() % uint64_t(joined));
    const auto rank = uint32_t(joined / 3);  // some are equal
    if (!rules.try_emplace({left, right}, rank, joined).second) continue;
    merges.add(left, right, rank, joined);
  }
  for (const size_t size : {0u, 1u, 2u, 48u, 49u, 400u}) {
    Ids symbols(size + 1);
    for (int32_t& symbol : symbols) symbol = int32_t(random() % 3);
    Ids expected = symbols;
    for (;;) {
      size_t best = 0;
      uint32_t rank = UINT32_MAX;
      for (size_t i = 1; i + 1 < expected.size(); ++i)
        if (const auto rule = rules.find({expected[i], expected[i + 1]});
            rule != rules.end() && rule->second.first < rank)
          best = i, rank = rule->second.first;
      if (best == 0) break;
      expected[best] = rules.at({expected[best], expected[best + 1]}).second;
      expected.erase(expected.begin() + int64_t(best) + 1);
    }
    merges.apply(symbols, 1);
    EXPECT_EQ(symbols, expected);
  }
}

}  // namespace
}  // namespace ashlar::data
