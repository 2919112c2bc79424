#include "ashlar/data/prepare.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ashlar/core/checksum.h"
#include "ashlar/data/sources.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

class Prepare : public testing::Test {
 protected:
  DatasetInfo run(const std::vector<std::string>& inputs, const std::string& prefix,
                  int num_threads = 1) {
    return run(*files, inputs, prefix, num_threads);
  }
  DatasetInfo run(FileSystem& on, const std::vector<std::string>& inputs, const std::string& prefix,
                  int num_threads = 1) {
    Log log([this](std::string_view line) { lines.emplace_back(line); });
    Threads threads(num_threads);
    return prepare(on, inputs, *byte_tokenizer(), prefix, threads, log,
                   {.text = {.documents = Documents::kBlankLine}});
  }
  std::unique_ptr<FileSystem> files = memory_files();
  std::vector<std::string> lines;
};

TEST_F(Prepare, WritesDocumentsWithTheirEnd) {
  write_file(*files, "a.txt", "ab\n\nc\n");
  write_file(*files, "b.jsonl", "{\"text\": \"d\"}\n");
  const DatasetInfo info = run({"a.txt", "b.jsonl"}, "out/set");
  EXPECT_EQ(info.documents, 3);
  EXPECT_EQ(info.tokens, 7);
  EXPECT_EQ(info.shortest_document, 2);
  EXPECT_EQ(info.longest_document, 3);
  EXPECT_EQ(info.bin_bytes, 14);
  EXPECT_EQ(info.token_type, TokenType::kU16);
  EXPECT_EQ(files->list("out"),
            (std::vector<std::string>{"set.bin", "set.idx", "set.json", "set.tokenizer.model"}));
  const IndexedDataset dataset(*files, "out/set");
  std::vector<int32_t> ids(7);
  dataset.read(0, 260, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{101, 102, 1, 103, 1, 104, 1}));

  ASSERT_TRUE(info.sidecar);
  EXPECT_EQ(info.sidecar->tokenizer_kind, "byte");
  EXPECT_EQ(info.sidecar->tokenizer_fingerprint, byte_tokenizer()->fingerprint());
  EXPECT_EQ(info.sidecar->vocab_size, 260);
  EXPECT_EQ(info.sidecar->eos_id, 1);
  EXPECT_EQ(info.sidecar->bin_crc32c, crc32c(read_text(*files, "out/set.bin")));
  EXPECT_EQ(info.sidecar->inputs,
            (std::vector<Sidecar::Input>{{"a.txt", 6, 2}, {"b.jsonl", 14, 1}}));
  EXPECT_EQ(tokenizer_of_dataset(*files, "out/set")->kind(), "byte");
}

// One row of JSON that several threads encode.
TEST_F(Prepare, LongDocumentsHaveTheIdsOfTheWhole) {
  std::string text;
  for (int i = 0; text.size() < 200'000; ++i)
    text += fmt::format("stone {} upon another,{}caf\u00e9. ", i, i % 5 ? " " : "  ");
  write_file(*files, "a.jsonl", fmt::format("{{\"text\": \"{}\"}}\n", text));
  const auto tokenizer = load_tokenizer(*posix_files(), kVectors + "bpe_no_prefix.model");
  Log log([](std::string_view) {});
  Threads threads(2);
  const std::vector<std::string> inputs{"a.jsonl"};
  const DatasetInfo info = prepare(*files, inputs, *tokenizer, "set", threads, log);
  EXPECT_EQ(info.documents, 1);
  std::vector<int32_t> expected = tokenizer->encode(text);
  expected.push_back(tokenizer->eos_id());
  std::vector<int32_t> ids(expected.size());
  IndexedDataset(*files, "set").read(0, tokenizer->vocab_size(), ids);
  EXPECT_TRUE(ids == expected);
}

TEST_F(Prepare, PutsTheBeginningInFrontOfEveryDocument) {
  write_file(*files, "a.txt", "ab\n\nc\n");
  Log log([](std::string_view) {});
  Threads threads(2);
  const std::vector<std::string> inputs{"a.txt"};
  const auto ids = [&](const std::string& prefix, int32_t bos_id) {
    const DatasetInfo info =
        prepare(*files, inputs, *byte_tokenizer(), prefix, threads, log,
                {.text = {.documents = Documents::kBlankLine}, .bos_id = bos_id});
    EXPECT_EQ(info.beginning, "ab");
    EXPECT_EQ(info.sidecar->bos_id, bos_id);
    const IndexedDataset dataset(*files, prefix);
    std::vector<int32_t> read(static_cast<size_t>(info.tokens));
    dataset.read(0, info.sidecar->vocab_size, read);
    return read;
  };
  EXPECT_EQ(ids("none", -1), (std::vector<int32_t>{101, 102, 1, 103, 1}));
  EXPECT_EQ(ids("bos", 2), (std::vector<int32_t>{2, 101, 102, 1, 2, 103, 1}));
  EXPECT_EQ(ids("added", 264), (std::vector<int32_t>{264, 101, 102, 1, 264, 103, 1}));
  // A dataset without it says nothing of it, as those before there was a choice.
  EXPECT_EQ(read_text(*files, "none.json").find("bos_id"), std::string::npos);
  EXPECT_NE(read_text(*files, "bos.json").find("\"bos_id\": 2"), std::string::npos);
}

TEST_F(Prepare, TheThreadsDoNotChangeTheBytes) {
  std::string text;
  for (int i = 0; i < 9000; ++i)
    text +=
        "document " + std::to_string(i) + std::string(static_cast<size_t>(i % 900), 'x') + "\n\n";
  write_file(*files, "a.txt", text);
  EXPECT_EQ(run({"a.txt"}, "one", 1).documents, 9000);
  run({"a.txt"}, "four", 4);
  for (const std::string suffix : {".bin", ".idx", ".json"})
    EXPECT_EQ(read_text(*files, "one" + suffix), read_text(*files, "four" + suffix)) << suffix;
}

// One document of many parts, on any number of threads.
TEST_F(Prepare, AFileOfAnySizeIsADocument) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < 20 * kPartBytes)
    text += fmt::format("line {}\n\n", text.size());
  write_file(*files, "a.txt", text);
  write_file(*files, "b.txt", "b\n");
  Log log([this](std::string_view line) { lines.emplace_back(line); });
  for (const int num_threads : {1, 3}) {
    Threads threads(num_threads);
    const std::string prefix = fmt::format("x{}", num_threads);
    const std::vector<std::string> inputs{"a.txt", "b.txt"};
    const DatasetInfo info = prepare(*files, inputs, *byte_tokenizer(), prefix, threads, log);
    EXPECT_EQ(info.documents, 2);
    EXPECT_EQ(info.tokens, static_cast<int64_t>(text.size()) + 2) << "the last line end goes";
    EXPECT_EQ(info.beginning, text.substr(0, 40));
    const IndexedDataset dataset(*files, prefix);
    std::vector<int32_t> ids(static_cast<size_t>(info.tokens));
    dataset.read(0, 260, ids);
    EXPECT_TRUE(byte_tokenizer()->decode(ids) == text.substr(0, text.size() - 1) + "b");
  }
  EXPECT_EQ(lines, std::vector<std::string>{});
}

TEST_F(Prepare, TellsOfWhatMayBeAMistake) {
  const auto model = load_tokenizer(*posix_files(), ASHLAR_FIXTURES "/vectors/bpe_no_prefix.model");
  write_file(*files, "rows.log", "{\"text\": \"a\\rb\\u0000\"}\n");
  write_file(*files, "a.txt",
             std::string("x\ry\n\xEF\xBB\xBFz \xE2\x96\x81\n\0 a<|endoftext|>b<|endoftext|>c", 44));
  write_file(*files, "empty.txt", "");
  Log log([this](std::string_view line) { lines.emplace_back(line); });
  Threads threads(1);
  const std::vector<std::string> inputs{"rows.log", "a.txt", "empty.txt", "a.txt"};
  const DatasetInfo info = prepare(*files, inputs, *model, "x", threads, log);
  EXPECT_EQ(info.documents, 3);
  const std::vector<std::string> expected{
      "warning: a.txt is given twice: its documents count twice",
      "rows.log is read as JSON lines, by its content",
      "warning: empty.txt is without a document",
      "warning: 2 carriage returns stand without a line feed (the first in the document or part at "
      "a.txt line 1)",
      "warning: 2 characters are U+2581 (the first in the document or part at a.txt line 1)",
      "warning: 3 characters are NUL (the first in the document or part at rows.log line 1)",
      "warning: 2 byte order marks stand inside a text (the first in the document or part at a.txt "
      "line 1)",
      "warning: 4 <|endoftext|> stand in the texts (the first in the document or part at a.txt "
      "line "
      "1)"};
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_TRUE(lines[i].starts_with(expected[i])) << lines[i];
  lines.clear();
  const std::vector<std::string> again{"a.txt"};
  prepare(*files, again, *byte_tokenizer(), "y", threads, log);
  EXPECT_EQ(lines.size(), 4u) << "to the byte tokenizer U+2581 is a character like any other";
}

TEST_F(Prepare, WarnsOfRepairedText) {
  write_file(*files, "a.txt", "caf\xE9\n");
  run({"a.txt"}, "x");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "warning: a.txt: 1 byte sequences are not UTF-8 and became U+FFFD; the first is in the "
            "document at line 1 (byte 0)");
  lines.clear();
  write_file(*files, "b.jsonl", "{\"text\": \"\\ud83d\"}\n");
  run({"b.jsonl"}, "y");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "warning: b.jsonl: 1 halves of surrogate pairs became U+FFFD; the first is in the "
            "document at line 1 (byte 0)");
}

TEST_F(Prepare, SaysHowManyBadDocumentsWereLeftOut) {
  write_file(*files, "a.jsonl", "{\"text\": null}\n{\"text\": \"ab\"}\n{\"text\": 3}\n");
  write_file(*files, "b.jsonl", "{\"text\": \"c\"}\n{}\n");
  write_file(*files, "c.jsonl", "{}\n");
  Log log([this](std::string_view line) { lines.emplace_back(line); });
  Threads threads(1);
  const auto prepared = [&](const std::vector<std::string>& inputs, const std::string& prefix) {
    return prepare(*files, inputs, *byte_tokenizer(), prefix, threads, log,
                   {.text = {.bad = BadDocuments::kSkip}});
  };
  EXPECT_EQ(prepared({"a.jsonl", "b.jsonl"}, "x").documents, 2);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "warning: 2 documents are tokenized; 3 bad documents were left out, the first: a.jsonl "
            "line 1 (byte 0): \"text\" is null; expected a string");
  const std::string none = message_of(ErrorKind::kData, [&] { prepared({"c.jsonl"}, "y"); });
  EXPECT_NE(none.find("1 bad documents were left out"), std::string::npos) << none;
}

TEST_F(Prepare, RefusesToOverwriteAndNeedsInput) {
  write_file(*files, "a.txt", "ab\n");
  write_file(*files, "blank.txt", " \n");
  run({"a.txt"}, "x");
  const std::string before = read_text(*files, "x.bin");
  EXPECT_NE(
      message_of(ErrorKind::kConfig, [&] { run({"a.txt"}, "x"); }).find("x.idx exist already"),
      std::string::npos);
  EXPECT_EQ(read_text(*files, "x.bin"), before);
  message_of(ErrorKind::kConfig, [&] { run({}, "y"); });
  EXPECT_NE(message_of(ErrorKind::kData,
                       [&] {
                         run({"a.txt", "no.txt"}, "y");
                       })
                .find("no.txt"),
            std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kData, [&] { run({"blank.txt"}, "y"); }).find("blank.txt"),
            std::string::npos);
}

// Every call of a whole preparation fails once, in every way: nothing may be left.
TEST_F(Prepare, LeavesNothingHalfWrittenWhateverFails) {
  for (const Fault fault : {Fault::kIoError, Fault::kDiskFull, Fault::kShortWrite})
    for (int64_t failing = 0;; ++failing) {
      const auto inner = memory_files();
      inner->make_directories("out");
      write_file(*inner, "a.txt", std::string(1'500'000, 'x') + "\n\nmore\n");
      int64_t calls = 0;
      const auto faulty =
          faulty_files(*inner, [&](int64_t call, std::string_view, const std::string&) {
            calls = call + 1;
            return call == failing ? fault : Fault::kNone;
          });
      bool failed = false;
      try {
        run(*faulty, {"a.txt"}, "out/x");
      } catch (const Error& error) {
        failed = true;
        // Reading the finished dataset back may fail; the dataset is then whole.
        const bool complete = inner->stat("out/x.idx").has_value();
        EXPECT_EQ(inner->list("out").size(), complete ? 4u : 0u)
            << "call " << failing << ": " << error.what();
        if (complete) {
          EXPECT_EQ(inspect_dataset(*inner, "out/x").documents, 2);
        }
      }
      if (!failed && failing >= calls) break;
    }
}

// Four names are written; whatever else has one of them is neither replaced nor removed.
TEST_F(Prepare, FilesOfOthersStay) {
  write_file(*files, "a.txt", "ab\n");
  for (const std::string suffix : {".bin", ".idx", ".json", ".tokenizer.model"}) {
    write_file(*files, "y" + suffix, "mine");
    EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { run({"a.txt"}, "y"); }),
              "y" + suffix +
                  " exists already; choose another name, remove it or replace it with --force");
    EXPECT_EQ(read_text(*files, "y" + suffix), "mine");
    files->remove("y" + suffix);
  }
  write_file(*files, "c.json", "{\"text\": \"one\"}");
  write_file(*files, "c.tokenizer.model", byte_tokenizer()->bytes());
  for (const Existing existing : {Existing::kRefuseUnlessForced, Existing::kReplace}) {
    const auto prepared = [&](const std::vector<std::string>& inputs, const std::string& tokenizer,
                              const std::string& prefix) {
      Log log([](std::string_view) {});
      Threads threads(1);
      prepare(*files, inputs, *load_tokenizer(*files, tokenizer), prefix, threads, log,
              {.existing = existing});
    };
    EXPECT_NE(message_of(ErrorKind::kConfig, [&] { prepared({"c.json"}, "byte", "c"); })
                  .find("the output c.json is the input c.json"),
              std::string::npos);
    EXPECT_NE(
        message_of(ErrorKind::kConfig, [&] { prepared({"a.txt"}, "c.tokenizer.model", "./c"); })
            .find("the output ./c.tokenizer.model is the input c.tokenizer.model"),
        std::string::npos);
  }
  EXPECT_EQ(files->list("."), (std::vector<std::string>{"a.txt", "c.json", "c.tokenizer.model"}));
}

TEST_F(Prepare, ReplacesADatasetWhenAsked) {
  write_file(*files, "a.txt", "ab\n");
  write_file(*files, "x.bin.7.tmp", "left");
  write_file(*files, "x.bin", "old");
  write_file(*files, "x.json", "old");
  Log log([this](std::string_view line) { lines.emplace_back(line); });
  Threads threads(1);
  const std::vector<std::string> inputs{"a.txt"};
  const auto replace = [&](FileSystem& on) {
    return prepare(on, inputs, *byte_tokenizer(), "x", threads, log,
                   {.existing = Existing::kReplace});
  };
  EXPECT_EQ(replace(*files).tokens, 3);
  EXPECT_EQ(lines, std::vector<std::string>{
                       "warning: x.bin.7.tmp was left by a run that was killed, or another one is "
                       "writing it"});
  EXPECT_TRUE(files->stat("x.bin.7.tmp"));
  // A text that is refused costs nothing.
  write_file(*files, "a.txt", "\xFF\xFE");
  message_of(ErrorKind::kData, [&] { replace(*files); });
  EXPECT_EQ(inspect_dataset(*files, "x").tokens, 3);
}

class SourcesTest : public testing::Test {
 protected:
  DataSpec spec_of(double fraction, Packing packing = Packing::kConcat) {
    DataSpec spec;
    spec.train = {{"x", 1.0}};
    spec.validation_fraction = fraction;
    spec.sequence_length = 9;
    spec.packing = packing;
    return spec;
  }
  TokenRange held_out(double fraction, Packing packing = Packing::kConcat) {
    const Sources sources = open_sources(*files, spec_of(fraction, packing), kTestVocab);
    EXPECT_EQ(sources.train[0].samples.range().end, sources.validation[0].samples.range().begin);
    return sources.validation[0].samples.range();
  }
  std::unique_ptr<FileSystem> files = memory_files();
};

TEST_F(SourcesTest, ValidationIsTheTailFromADocumentBorder) {
  write_counting(*files, "x", std::vector<int64_t>(100, 10));
  EXPECT_EQ(held_out(0.1), (TokenRange{900, 1000}));
  EXPECT_EQ(held_out(0.104), (TokenRange{900, 1000})) << "the nearest border";
  EXPECT_EQ(held_out(0.106), (TokenRange{890, 1000}));
  EXPECT_EQ(held_out(0.0001), (TokenRange{990, 1000})) << "at least one sample";
  EXPECT_EQ(held_out(0.1, Packing::kBestFit), (TokenRange{900, 1000}));
  EXPECT_TRUE(open_sources(*files, spec_of(0), kTestVocab).validation.empty());
}

TEST_F(SourcesTest, ALongDocumentIsCutUnlessPackingForbidsIt) {
  write_counting(*files, "x", {1000});
  EXPECT_EQ(held_out(0.1), (TokenRange{900, 1000}));
  message_of(ErrorKind::kConfig, [&] { held_out(0.1, Packing::kBestFit); });
}

TEST_F(SourcesTest, TooLittleTextIsAnErrorThatSaysWhatToDo) {
  write_counting(*files, "x", {15});
  const std::string message = message_of(ErrorKind::kConfig, [&] { held_out(0.1); });
  EXPECT_TRUE(message.starts_with("data.train: x has 15 tokens, too few")) << message;
  EXPECT_NE(message.find("data.validation_fraction=0"), std::string::npos) << message;
  EXPECT_EQ(open_sources(*files, spec_of(0), kTestVocab).train[0].samples.size(), 1);
  DataSpec spec = spec_of(0);
  spec.sequence_length = 15;
  message_of(ErrorKind::kConfig, [&] { open_sources(*files, spec, kTestVocab); });
  spec.train.clear();
  message_of(ErrorKind::kConfig, [&] { open_sources(*files, spec, kTestVocab); });
}

TEST_F(SourcesTest, SeparateValidationSets) {
  write_counting(*files, "x", {100});
  write_counting(*files, "v", {30, 10});
  DataSpec spec = spec_of(0.5);
  spec.validation = {{"v", 2.0}};
  const Sources sources = open_sources(*files, spec, kTestVocab);
  EXPECT_EQ(sources.train[0].samples.range(), (TokenRange{0, 100}));
  EXPECT_EQ(sources.validation[0].samples.range(), (TokenRange{0, 40}));
}

TEST_F(SourcesTest, ErrorsNameTheKey) {
  write_counting(*files, "x", {100});
  write_counting(*files, "short", {5});
  DataSpec spec = spec_of(0);
  const auto refused = [&](ErrorKind kind, const std::string& beginning) {
    const std::string message = message_of(kind, [&] {
      open_sources(*files, spec, kTestVocab);
      tokenizer_of(*files, spec);
    });
    EXPECT_TRUE(message.starts_with(beginning)) << message;
  };
  spec.tokenizer = "gone.model";
  refused(ErrorKind::kData, "data.tokenizer: gone.model: there is no such tokenizer file");
  spec.validation = {{"v", 1.0}};
  refused(ErrorKind::kData, "data.validation: v.idx: there is no such file");
  spec.validation = {{"short", 1.0}};
  refused(ErrorKind::kConfig, "data.validation: short: the 5 tokens for validation hold no");
  spec.train.push_back({"y", 1.0});
  refused(ErrorKind::kData, "data.train: y.idx: there is no such file");
  const std::string flag = message_of(
      ErrorKind::kData, [&] { open_source(*files, "z", 4, Packing::kConcat, 9, "--data"); });
  EXPECT_TRUE(flag.starts_with("--data: z.idx: there is no such file")) << flag;
}

TEST_F(SourcesTest, TokenizersAndVocabulariesMustAgree) {
  Log log([](std::string_view) {});
  Threads threads(1);
  const auto other = load_tokenizer(*posix_files(), ASHLAR_FIXTURES "/vectors/bpe_no_prefix.model");
  const std::vector<std::string> inputs{"a.txt"};
  write_file(*files, "a.txt", std::string(200, 'x'));
  write_file(*files, "other.model", other->bytes());
  prepare(*files, inputs, *byte_tokenizer(), "x", threads, log);
  prepare(*files, inputs, *other, "y", threads, log);
  DataSpec spec = spec_of(0);
  const std::string vocabulary =
      message_of(ErrorKind::kConfig, [&] { open_sources(*files, spec, 259); });
  EXPECT_NE(vocabulary.find("model.vocab_size is 259; expected at least 260"), std::string::npos)
      << vocabulary;
  EXPECT_EQ(tokenizer_of(*files, spec)->kind(), "byte");
  spec.tokenizer = "other.model";
  const std::string foreign = message_of(ErrorKind::kData, [&] { tokenizer_of(*files, spec); });
  EXPECT_TRUE(foreign.starts_with("data.tokenizer: the tokenizer other.model has")) << foreign;
  spec.train.push_back({"y", 1.0});
  message_of(ErrorKind::kData, [&] { open_sources(*files, spec, kTestVocab); });
}

// Data of another program says nothing of its tokenizer: none is needed, and one that is named has
// every id.
TEST_F(SourcesTest, ForeignDataNeedsNoTokenizer) {
  write_counting(*files, "x", {100, 160});  // ids 0 to 259
  write_counting(*files, "y", {100, 161});
  DataSpec spec = spec_of(0);
  EXPECT_EQ(tokenizer_of(*files, spec), nullptr);
  spec.tokenizer = "byte";
  EXPECT_EQ(tokenizer_of(*files, spec)->kind(), "byte");
  spec.train.push_back({"y", 1.0});
  EXPECT_EQ(
      message_of(ErrorKind::kData, [&] { tokenizer_of(*files, spec); }),
      "data.tokenizer: y.bin: token 260 is 260; expected ids from 0 to 259 (the vocabulary of "
      "the byte tokenizer has 260); name the tokenizer that made the ids, or give "
      "data.tokenizer=\"\"");
  spec.tokenizer = "";
  EXPECT_EQ(tokenizer_of(*files, spec), nullptr);
  // Beside a dataset of our own, whose tokenizer is then the run's.
  Log log([](std::string_view) {});
  Threads threads(1);
  write_file(*files, "a.txt", "text");
  const std::vector<std::string> inputs{"a.txt"};
  prepare(*files, inputs, *byte_tokenizer(), "z", threads, log);
  spec.train = {{"x", 1.0}, {"z", 1.0}};
  EXPECT_EQ(tokenizer_of(*files, spec)->kind(), "byte");
  spec.train = {{"y", 1.0}, {"z", 1.0}};
  EXPECT_TRUE(message_of(ErrorKind::kData, [&] {
                tokenizer_of(*files, spec);
              }).starts_with("data.train: y.bin: token 260 is 260;"));
  // A dataset of our own that lost its tokenizer is no foreign one.
  files->remove("z.tokenizer.model");
  spec.train = {{"z", 1.0}};
  EXPECT_TRUE(message_of(ErrorKind::kData, [&] {
                tokenizer_of(*files, spec);
              }).starts_with("data.train: z.tokenizer.model: there is no such file"));
}

TEST(Sources, LargeDatasetsAreLookedAtInPart) {
  EXPECT_EQ(looked_at(1), (std::vector<int64_t>{0}));
  EXPECT_EQ(looked_at(kBlockTokens + 1), (std::vector<int64_t>{0, kBlockTokens}));
  const std::vector<int64_t> some = looked_at(1000 * kBlockTokens);
  EXPECT_EQ(static_cast<int64_t>(some.size()), kMostBlocks);
  EXPECT_EQ(some.front(), 0);
  EXPECT_EQ(some.back(), 999 * kBlockTokens);
}

TEST(Sidecar, ComesBackAsItWas) {
  const Sidecar sidecar{"byte",     0xfedcba9876543210u, 260, 1, 2, 3, 7, "u16",
                        0x00c0ffee, {{"a\"b", 5, 3}}};
  EXPECT_EQ(parse_sidecar(format_sidecar(sidecar), "x.json"), sidecar);
}

}  // namespace
}  // namespace ashlar::data
