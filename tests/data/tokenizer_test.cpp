#include "ashlar/data/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include "ashlar/core/rng.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/stream_decoder.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

const std::vector<std::string> kPlainTexts = {
    "",
    "stone",
    " stone",
    "  two  spaces ",
    "The mason sets the lintel over the door; 12 waits.",
    "line\nline\n\n\ttabbed",
    "na\xC3\xAFve \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\xA7\xB1",
    std::string("nul\0nul", 7)};

std::string streamed(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(check_utf8(part).num_invalid, 0) << "only whole characters are handed out";
    text += part;
  }
  return text + decoder.finish();
}

Log silent() {
  return Log([](std::string_view) {});
}

std::string train_on_stones(TokenizerTraining::Kind kind, int64_t vocab_size) {
  const auto files = posix_files();
  Log log([](std::string_view) {});
  TokenizerTraining training;
  training.kind = kind;
  training.vocab_size = vocab_size;
  const std::vector<std::string> inputs{kVectors + "stones.txt"};
  return train_sentencepiece(*files, inputs, training, log);
}

TEST(ByteTokenizer, HasTheDocumentedIds) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->unk_id(), 3);
  EXPECT_EQ(tokenizer->encode("A\xFF"), (std::vector<int32_t>{69, 259}));
  for (const std::string& text : kPlainTexts) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(streamed(*tokenizer, tokenizer->encode(text)), text);
  }
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{2, 69, 1, 0}), "A");
}

TEST(ByteTokenizer, CutCharactersAreHeldBackThenReplaced) {
  const auto tokenizer = byte_tokenizer();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(4 + 'a'), "a");
  EXPECT_EQ(decoder.push(4 + 0xE6), "");
  EXPECT_EQ(decoder.push(4 + 0xBC), "");
  EXPECT_EQ(decoder.push(4 + 0xA2), "\xE6\xBC\xA2");
  EXPECT_EQ(decoder.push(4 + 0xE6), "");
  EXPECT_EQ(decoder.push(4 + 'b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(decoder.push(4 + 0xF0), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, IsLoadedFromItsBytes) {
  const auto files = memory_files();
  EXPECT_EQ(load_tokenizer(*files, "byte")->kind(), "byte");
  write_file(*files, "tok.model", byte_tokenizer()->bytes());
  EXPECT_EQ(load_tokenizer(*files, "tok.model")->fingerprint(), byte_tokenizer()->fingerprint());
  const std::string model = train_on_stones(TokenizerTraining::Kind::kBpe, 340);
  const auto tokenizer = parse_tokenizer(model, "tok.model");
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->bytes(), model);
  EXPECT_NE(tokenizer->fingerprint(), byte_tokenizer()->fingerprint());
}

// A model may have more ids than its tokenizer: in a text they are unknown characters.
TEST(Tokenizer, IdsOutsideTheVocabulary) {
  const std::string path = kVectors + "unigram_default.model";
  const auto files = memory_files();
  write_file(*files, "mine.model", byte_tokenizer()->bytes());
  for (const auto& [tokenizer, name] :
       {std::pair{byte_tokenizer(), std::string("the byte tokenizer")},
        std::pair{load_tokenizer(*files, "mine.model"), std::string("mine.model")},
        std::pair{load_tokenizer(*posix_files(), path), path}}) {
    const auto past = static_cast<int32_t>(tokenizer->vocab_size());
    for (const int32_t id : {-1, past})
      EXPECT_TRUE(message_of(ErrorKind::kData, [&] {
                    tokenizer->piece(id);
                  }).starts_with(name + ": token id " + std::to_string(id) + " "));
    std::vector<int32_t> ids = tokenizer->encode("ab");
    ids.insert(ids.begin(), {past, INT32_MAX});
    EXPECT_NE(tokenizer->decode(ids).find("\xef\xbf\xbd\xef\xbf\xbd"), std::string::npos);
  }
  EXPECT_EQ(byte_tokenizer()->decode(std::vector<int32_t>{4 + 'a', 260, 4 + 'b'}),
            "a\xef\xbf\xbd"
            "b");
}

class Trained : public testing::TestWithParam<TokenizerTraining::Kind> {};

TEST_P(Trained, HasTheSizeAndIdsAskedForAndIsLossless) {
  const auto tokenizer = parse_tokenizer(train_on_stones(GetParam(), 400), "trained");
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->unk_id(), 3);
  EXPECT_EQ(tokenizer->leading_space(), LeadingSpace::kDropOne);
  for (const std::string& text : kPlainTexts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_EQ(streamed(*tokenizer, ids), text);
  }
  EXPECT_LT(tokenizer->encode("The mason sets the lintel over the door").size(), 26u)
      << "words are pieces";
}

TEST_P(Trained, IsTheSameEveryTime) {
  EXPECT_EQ(train_on_stones(GetParam(), 350), train_on_stones(GetParam(), 350));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Trained,
                         testing::Values(TokenizerTraining::Kind::kBpe,
                                         TokenizerTraining::Kind::kUnigram));

TEST(Training, ImpossibleVocabulariesAreConfigErrors) {
  for (const int64_t vocab_size : {int64_t{0}, int64_t{260}, int64_t{265}, int64_t{60000}}) {
    const std::string message = message_of(
        ErrorKind::kConfig, [&] { train_on_stones(TokenizerTraining::Kind::kBpe, vocab_size); });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.find(std::to_string(vocab_size)), std::string::npos) << message;
  }
  EXPECT_NE(message_of(ErrorKind::kConfig,
                       [] { train_on_stones(TokenizerTraining::Kind::kUnigram, 60000); })
                .find("60000"),
            std::string::npos);
}

// The library's words name its flags; ours say what --vocab can be, and that is so.
TEST(Training, ImpossibleVocabulariesAreToldWhatIsPossible) {
  using Kind = TokenizerTraining::Kind;
  for (const Kind kind : {Kind::kBpe, Kind::kUnigram})
    for (const int64_t vocab_size : {265, 60000}) {
      const std::string message =
          message_of(ErrorKind::kConfig, [&] { train_on_stones(kind, vocab_size); });
      EXPECT_EQ(message.find("coverage"), std::string::npos) << message;
      const size_t at = message.find("--vocab ");
      ASSERT_NE(at, std::string::npos) << message;
      const int64_t possible = std::stoll(message.substr(at + 8));
      EXPECT_EQ(parse_tokenizer(train_on_stones(kind, possible), "t")->vocab_size(), possible);
    }
}

TEST(Training, BadDocumentsAreLeftOut) {
  const auto files = memory_files();
  std::vector<std::string> lines;  // but for progress, which slow machines show
  Log log([&](std::string_view line) {
    if (!line.starts_with("training the tokenizer")) lines.emplace_back(line);
  });
  write_file(*files, "bad.jsonl", "{\"text\": null}\n{\"text\": \"one stone\"}\n");
  TokenizerTraining training;
  training.vocab_size = 268;
  training.text.bad = BadDocuments::kSkip;
  const std::vector<std::string> inputs{"bad.jsonl"};
  train_sentencepiece(*files, inputs, training, log);
  EXPECT_EQ(lines, std::vector<std::string>{
                       "warning: 1 lines were learned from; 1 bad documents were left out, the "
                       "first: bad.jsonl line 1 (byte 0): \"text\" is null; expected a string"});
}

// Whatever divides a text into documents, the same lines are learned from; of a long file all of
// them, the words at the borders of its parts whole.
TEST(Training, LearnsFromAllOfAFile) {
  const auto files = memory_files();
  Log log = silent();
  std::string text, separated, last;
  for (int i = 0; i < 60'000; ++i) {
    const std::string line = fmt::format("one stone upon {} others", i % 977);
    text += line + "\n";
    separated += line + "\n\n";
  }
  ASSERT_GT(static_cast<int64_t>(text.size()), 4 * kPartBytes);
  for (int i = 0; i < 3'000; ++i) last += "quicksilver ";
  write_file(*files, "a.txt", text + last);
  write_file(*files, "b.txt", separated + last);
  const auto learn = [&](const std::string& input, Documents documents) {
    TokenizerTraining training;
    training.vocab_size = 320;
    training.text.documents = documents;
    const std::vector<std::string> inputs{input};
    return train_sentencepiece(*files, inputs, training, log);
  };
  const std::string model = learn("a.txt", Documents::kFile);
  EXPECT_TRUE(learn("a.txt", Documents::kLine) == model);
  EXPECT_TRUE(learn("b.txt", Documents::kBlankLine) == model);
  EXPECT_EQ(parse_tokenizer(model, "m")->encode("quicksilver").size(), 1u);
}

// Memory for text without spaces is bounded; the end of a long one is learned from like its start.
TEST(Training, LongRunsWithoutASpaceAreSampledEvenly) {
  const auto files = memory_files();
  std::vector<std::string> lines;
  Log log([&](std::string_view line) {
    if (line.starts_with("warning")) lines.emplace_back(line);
  });
  std::string text(3 * static_cast<size_t>(kMaxUnspacedBytes), 'a');
  for (size_t i = text.size() / 2; i < text.size(); i += 2) text[i] = 'b';
  write_file(*files, "a.txt", text);
  TokenizerTraining training;
  training.vocab_size = 268;
  const std::vector<std::string> inputs{"a.txt"};
  const auto tokenizer = parse_tokenizer(train_sentencepiece(*files, inputs, training, log), "t");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("warning: 6")) << lines[0];
  EXPECT_NE(lines[0].find("pieces of 4096 bytes have no space in them"), std::string::npos);
  EXPECT_LE(tokenizer->encode("aaaaaaaa").size(), 5u);
  EXPECT_LE(tokenizer->encode("babababa").size(), 5u);
}

// The library leaves lines out, without a word, that hold NUL or U+2585, its own sign.
TEST(Training, NoLineIsLeftOut) {
  const auto files = memory_files();
  Log log = silent();
  std::string text;
  for (int i = 0; i < 50; ++i) text += "quicksilver \xE2\x96\x85\n";
  write_file(*files, "a.txt", text + "lantern" + std::string(1, '\0') + "\n");
  TokenizerTraining training;
  training.vocab_size = 288;
  const std::vector<std::string> inputs{"a.txt"};
  const auto tokenizer = parse_tokenizer(train_sentencepiece(*files, inputs, training, log), "t");
  EXPECT_EQ(tokenizer->encode("quicksilver").size(), 1u);
}

// The ids of parts against those of the whole, over models with and without a dummy prefix and
// with spaces that are kept or collapsed.
TEST(Parts, HaveTheIdsOfTheWhole) {
  std::string text;
  for (int i = 0; i < 3'000; ++i)
    text += fmt::format("{} stone{} upon  another,{}caf\u00e9 {}. ", i, i % 3 ? "s" : "",
                        i % 5 ? " " : "\n\n", i * 7919);
  const auto posix = posix_files();
  for (const char* name : {"bpe_no_prefix", "unigram_default"}) {
    const auto tokenizer = load_tokenizer(*posix, kVectors + name + ".model");
    const std::vector<int32_t> whole = tokenizer->encode(text);
    for (const size_t bytes : {100'000u, 70'001u, 66'000u}) {
      std::vector<int32_t> ids;
      std::string_view rest = text;
      while (rest.size() > bytes) {
        const size_t size = part_of(rest.substr(0, bytes));
        ASSERT_GT(size, 0u);
        const auto part = rest.substr(0, size);
        const auto more = ids.empty() ? tokenizer->encode(part) : tokenizer->encode_more(part);
        ids.insert(ids.end(), more.begin(), more.end());
        rest.remove_prefix(size);
      }
      const auto more = tokenizer->encode_more(rest);
      ids.insert(ids.end(), more.begin(), more.end());
      EXPECT_TRUE(ids == whole) << name << " " << bytes;
    }
  }
}

// Without a space the parts have the characters of the whole.
TEST(Parts, WithoutSpacesDecodeToTheText) {
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += i % 7 ? "\xE5\xB1\xB1" : "\xE6\xB2\xB3";
  const auto posix = posix_files();
  for (const char* name : {"bpe_no_prefix", "unigram_default"}) {
    const auto tokenizer = load_tokenizer(*posix, kVectors + name + ".model");
    const size_t size = part_of(std::string_view(text).substr(0, 100'002));
    EXPECT_EQ(size % 3, 0u);
    std::vector<int32_t> ids = tokenizer->encode(text.substr(0, size));
    const auto more = tokenizer->encode_more(text.substr(size));
    ids.insert(ids.end(), more.begin(), more.end());
    EXPECT_TRUE(tokenizer->decode(ids) == tokenizer->decode(tokenizer->encode(text))) << name;
  }
}

TEST(Parts, AreCutAtASpaceOrBetweenCharacters) {
  EXPECT_EQ(part_of("one two three"), 7u);
  EXPECT_EQ(part_of("one  two"), 6u) << "not within several spaces";
  EXPECT_EQ(part_of("onetwo"), 4u);
  EXPECT_EQ(part_of("x"), 1u);
  EXPECT_EQ(part_of("    "), 4u);
  EXPECT_EQ(part_of("a\xE2\x82\xAC"), 1u);
}

TEST(Training, SettingsHaveLimits) {
  const auto files = posix_files();
  Log log = silent();
  const std::vector<std::string> inputs{kVectors + "stones.txt"};
  const auto refused = [&](auto change, const std::vector<std::string>& from) {
    TokenizerTraining training;
    change(training);
    return message_of(ErrorKind::kConfig,
                      [&] { train_sentencepiece(*files, from, training, log); });
  };
  EXPECT_NE(refused([](auto& t) { t.character_coverage = 0; }, inputs).find("coverage is 0"),
            std::string::npos);
  EXPECT_NE(refused([](auto& t) { t.character_coverage = 1.5; }, inputs).find("coverage is 1.5"),
            std::string::npos);
  EXPECT_NE(refused([](auto& t) { t.max_lines = 0; }, inputs).find("max_lines is 0"),
            std::string::npos);
  EXPECT_NE(refused([](auto& t) { t.vocab_size = (1 << 24) + 1; }, inputs).find("to 16777216"),
            std::string::npos);
  EXPECT_NE(refused([](auto&) {}, {}).find("no input file"), std::string::npos);
}

TEST(Training, ErrorsOfTheInputAreKept) {
  const auto files = memory_files();
  Log log = silent();
  write_file(*files, "a.jsonl", "{\"text\": \"one stone\"}\n{\"text\": 3}\n");
  write_file(*files, "blank.txt", "\n\n");
  for (const auto& [input, expected] : std::vector<std::pair<std::string, std::string>>{
           {"a.jsonl", "a.jsonl line 2 (byte 22)"},
           {"blank.txt", "blank.txt: no text"},
           {"absent.txt", "absent.txt: there is no"}}) {
    const std::vector<std::string> inputs{input};
    const std::string message =
        message_of(ErrorKind::kData, [&] { train_sentencepiece(*files, inputs, {}, log); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

// The byte tokenizer with other special ids.
class SpecialIds : public Tokenizer {
 public:
  SpecialIds(int32_t bos, int32_t eos) : bos_(bos), eos_(eos) {}
  std::string_view kind() const override { return bytes_->kind(); }
  const std::string& name() const override { return bytes_->name(); }
  int64_t vocab_size() const override { return bytes_->vocab_size(); }
  int32_t eos_id() const override { return eos_; }
  int32_t bos_id() const override { return bos_; }
  int32_t pad_id() const override { return bytes_->pad_id(); }
  int32_t unk_id() const override { return bytes_->unk_id(); }
  const std::string& bytes() const override { return bytes_->bytes(); }
  std::vector<int32_t> encode(std::string_view text) const override { return bytes_->encode(text); }
  std::string piece(int32_t id) const override { return bytes_->piece(id); }
  int32_t id_of(std::string_view name) const override { return bytes_->id_of(name); }
  LeadingSpace leading_space() const override { return bytes_->leading_space(); }
  bool starts_word(int32_t id) const override { return bytes_->starts_word(id); }

 private:
  std::unique_ptr<Tokenizer> bytes_ = byte_tokenizer();
  int32_t bos_, eos_;
};

TEST(FirstId, IsBosElseEosElseAnError) {
  EXPECT_EQ(first_id(SpecialIds(2, 1)), 2);
  EXPECT_EQ(first_id(SpecialIds(0, 1)), 0);
  EXPECT_EQ(first_id(SpecialIds(-1, 1)), 1);
  const std::string message = message_of(ErrorKind::kData, [] { first_id(SpecialIds(-1, -1)); });
  EXPECT_NE(message.find("bos_id"), std::string::npos) << message;
  EXPECT_NE(message.find("give a prompt or ids"), std::string::npos) << message;
}

// Models of spm_train against the library's own decoder, on whole texts and on random ids.
class Foreign : public testing::TestWithParam<std::pair<const char*, LeadingSpace>> {};

TEST_P(Foreign, DecodesAsTheLibraryDoes) {
  const std::string path = kVectors + GetParam().first;
  const auto tokenizer = load_tokenizer(*posix_files(), path);
  EXPECT_EQ(tokenizer->leading_space(), GetParam().second);
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(path).ok());
  for (const std::string& text : kPlainTexts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), library.DecodeIds(ids)) << text;
  }
  const Rng rng(7, "foreign");
  for (uint64_t trial = 0; trial < 300; ++trial) {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 1 + trial % 8; ++i) {
      const auto id = static_cast<int32_t>(
          rng.below(trial * 8 + i, static_cast<uint64_t>(tokenizer->vocab_size())));
      // Bytes that make no character are replaced one by one there, by the Unicode rule here.
      if (!library.IsByte(id) || std::stoi(library.IdToPiece(id).substr(3, 2), nullptr, 16) < 128)
        ids.push_back(id);
    }
    EXPECT_EQ(streamed(*tokenizer, ids), library.DecodeIds(ids)) << "trial " << trial;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Foreign,
                         testing::Values(std::pair{"unigram_default.model", LeadingSpace::kDropAll},
                                         std::pair{"bpe_no_prefix.model", LeadingSpace::kKeep}));

TEST(StreamDecoder, ContinuesAPrompt) {
  const auto tokenizer =
      parse_tokenizer(train_on_stones(TokenizerTraining::Kind::kBpe, 400), "trained");
  const auto prompt = tokenizer->encode("The mason");
  const auto all = tokenizer->encode("The mason sets the arch");
  ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), all.begin()));
  StreamDecoder decoder(*tokenizer);
  for (const int32_t id : prompt) decoder.push(id);
  std::string text;
  for (size_t i = prompt.size(); i < all.size(); ++i) text += decoder.push(all[i]);
  EXPECT_EQ(text + decoder.finish(), " sets the arch");
}

}  // namespace
}  // namespace ashlar::data
