// Datasets of chats and completions: their masks on disk, and in batches.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/checksum.h"
#include "ashlar/data/prepare.h"
#include "ashlar/data/verify.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

class MaskedDataset : public testing::Test {
 protected:
  MaskedDataset() {
    write_file(*files, "chatml.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}");
  }
  DatasetInfo run(const std::string& rows, RowOptions options, bool skip = false,
                  int32_t bos_id = -1) {
    write_file(*files, "rows.jsonl", rows);
    Log log([this](std::string_view line) { lines.emplace_back(line); });
    Threads threads(2);
    PrepareOptions all{.rows = options, .existing = Existing::kReplace, .bos_id = bos_id};
    all.text.format = InputFormat::kJsonLines;
    all.text.whole_rows = true;
    if (skip) all.text.bad = BadDocuments::kSkip;
    const std::string inputs[] = {"rows.jsonl"};
    return prepare(*files, inputs, *byte_tokenizer(), "set", threads, log, all);
  }
  // The learned tokens as text, and '.' for each of the others; ids 1 and 2 are $ and ^.
  std::string shown() {
    const IndexedDataset dataset(*files, "set");
    std::vector<int32_t> ids(static_cast<size_t>(dataset.index().num_tokens()));
    dataset.read(0, 260, ids);
    std::string out;
    for (size_t i = 0; i < ids.size(); ++i)
      out += !dataset.is_learned(int64_t(i)) ? '.' : ids[i] < 4 ? "?$^?"[ids[i]] : char(ids[i] - 4);
    return out;
  }
  const RowOptions kChats{.format = RowFormat::kChat, .chat_template = "chatml.jinja"};
  const std::string kChat =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})";
  std::unique_ptr<FileSystem> files = memory_files();
  std::vector<std::string> lines;
};

TEST_F(MaskedDataset, HoldsABitForEachToken) {
  const DatasetInfo info = run(kChat + "\n", kChats);
  // <user>Hi$<assistant>Ho$, in which </s> is one token.
  EXPECT_EQ(shown(), std::string(20, '.') + "Ho$");
  EXPECT_EQ(info.tokens, 23);
  ASSERT_TRUE(info.sidecar && info.sidecar->mask);
  EXPECT_EQ(info.sidecar->mask->learned, 3);
  const std::string mask = read_text(*files, "set.mask");
  EXPECT_EQ(mask, std::string("\0\0\x70", 3));
  EXPECT_EQ(info.sidecar->mask->crc32c, crc32c(mask));
  EXPECT_EQ(files->list("."),
            (std::vector<std::string>{"chatml.jinja", "rows.jsonl", "set.bin", "set.idx",
                                      "set.json", "set.mask", "set.tokenizer.model"}));
}

TEST_F(MaskedDataset, LeavesTheFilesOfOtherReadersAsTheyAre) {
  run(kChat + "\n" + kChat + "\n", kChats);
  const IndexedDataset dataset(*files, "set");
  std::vector<std::vector<int32_t>> documents;
  for (int64_t d = 0; d < dataset.index().num_documents(); ++d) {
    documents.emplace_back(static_cast<size_t>(dataset.index().document_length(d)));
    dataset.read(dataset.index().document_start(d), 260, documents.back());
  }
  write_documents(*files, "plain", documents, 260);
  for (const char* ending : {".bin", ".idx"})
    EXPECT_EQ(read_text(*files, std::string("set") + ending),
              read_text(*files, std::string("plain") + ending));
  EXPECT_FALSE(IndexedDataset(*files, "plain").is_masked());
}

TEST_F(MaskedDataset, LearnsCompletionsAndTheirEnd) {
  const RowOptions completion{.format = RowFormat::kCompletion};
  const std::string row = R"({"prompt": "ab", "completion": "cd"})";
  run(row, completion);
  EXPECT_EQ(shown(), "..cd$");
  run(row, completion, false, 2);
  EXPECT_EQ(shown(), "...cd$");
  run(row, {.format = RowFormat::kCompletion, .train_on_input = true});
  EXPECT_EQ(shown(), "abcd$");
}

TEST_F(MaskedDataset, LearnsChatsWhollyOnRequest) {
  RowOptions options = kChats;
  options.train_on_input = true;
  run(kChat, options);
  EXPECT_EQ(shown(), "<user>Hi$<assistant>Ho$");
}

TEST_F(MaskedDataset, LeavesOutWhatHasNothingToLearnAndWhatIsBad) {
  const std::string question = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(run(question + "\n" + kChat + "\n", kChats).documents, 1);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.back().find("1 rows without anything to learn were left out, the first: "
                              "rows.jsonl line 1 (byte 0)"),
            std::string::npos);
  EXPECT_EQ(run("{\"a\": 1}\n" + kChat, kChats, true).documents, 1);
  EXPECT_NE(message_of(ErrorKind::kData, [&] { run("{\"a\": 1}\n" + kChat, kChats); })
                .find("rows.jsonl line 1 (byte 0): the row has no messages"),
            std::string::npos);
}

TEST_F(MaskedDataset, GivesNoTargetsOutsideOfTheMask) {
  run(kChat + "\n" + kChat + "\n", kChats);
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit}) {
    Loader loader({source_of(*files, "set", 45, packing)},
                  {.vocab_size = 260, .shuffle = false, .num_samples = 1});
    Batch batch;
    loader.next(batch);
    std::vector<int32_t> expected(45, -1);
    for (const int begin : {19, 42}) {
      const int32_t answer[] = {'H' + 4, 'o' + 4, 1};
      std::copy(std::begin(answer), std::end(answer), expected.begin() + begin);
    }
    EXPECT_EQ(batch.targets_BT, expected);
    EXPECT_EQ(batch.num_targets, 6);
  }
}

TEST_F(MaskedDataset, ShowsDamage) {
  run(kChat, kChats);
  const uint64_t fingerprint = IndexedDataset(*files, "set").fingerprint();
  Log log([](std::string_view) {});
  const DatasetReport report = verify_dataset(*files, "set", log);
  EXPECT_EQ(report.finding, "");
  EXPECT_EQ(report.bytes, 23 * 2 + 3);
  write_file(*files, "set.mask", std::string("\0\0\x71", 3));
  EXPECT_EQ(verify_dataset(*files, "set", log).finding.find("set.mask: checksum is "), 0u);
  write_file(*files, "set.mask", std::string("\0\0", 2));
  EXPECT_EQ(
      message_of(ErrorKind::kData, [&] { IndexedDataset(*files, "set"); }),
      "set.mask: the file has 2 bytes; expected 3, a bit for each of the 23 tokens of set.idx");
  RowOptions all = kChats;
  all.train_on_input = true;
  run(kChat, all);
  EXPECT_NE(IndexedDataset(*files, "set").fingerprint(), fingerprint);
}

}  // namespace
}  // namespace ashlar::data
