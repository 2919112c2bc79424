// A model whose only tokenizer is a tokenizer.json: data, training, export and text with it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

const std::string kGpt2 = kData + "/tokenizers/gpt2/tokenizer.json";

// `ashlar tokenizer ...` with `rows` as its input.
std::string convert(const Scratch& scratch, const std::vector<std::string>& args,
                    const std::string& rows) {
  write_file(scratch / "rows", rows);
  std::vector<std::string> command{"tokenizer"};
  command.insert(command.end(), args.begin(), args.end());
  const Result result = run(scratch, command, [path = (scratch / "rows").string()] {
    if (!std::freopen(path.c_str(), "r", stdin)) _exit(99);
  });
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

TEST(JsonTokenizer, EncodesAndDecodesRows) {
  const Scratch scratch;
  std::ifstream cases(kData + "/tokenizers/llama3/cases.jsonl");
  std::string texts, ids, expected_ids, expected_texts;
  for (std::string line; std::getline(cases, line);) {
    const json row = json::parse(line);
    texts += json{{"text", row["text"]}}.dump() + "\n";
    ids += json{{"ids", row["ids"]}}.dump() + "\n";
    expected_ids += json{{"ids", row.value("special", row["ids"])}}.dump() + "\n";
    expected_texts += row.value("skipping", row.value("decoded", row["text"])).get<std::string>();
  }
  const std::string tokenizer = kData + "/tokenizers/llama3";
  EXPECT_EQ(convert(scratch, {"encode", "--tokenizer", tokenizer, "--special"}, texts),
            expected_ids);
  const std::string decoded =
      convert(scratch, {"decode", "--tokenizer", tokenizer, "--skip-special"}, ids);
  std::string joined;
  std::istringstream lines(decoded);
  for (std::string line; std::getline(lines, line);)
    joined += json::parse(line)["text"].get<std::string>();
  EXPECT_EQ(joined, expected_texts);
}

TEST(JsonTokenizer, TrainsAndGoesAlong) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The mason sets the lintel.<|endoftext|>A stone waits.\n";
  write_file(scratch / "text.txt", text);
  run_ok(scratch, {"data", "prepare", "--input", "text.txt", "--tokenizer", kGpt2, "--out", "set"});
  const json sidecar = json::parse(read_file(scratch / "set.json"));
  EXPECT_EQ(sidecar["tokenizer"]["kind"], "tokenizer.json");
  EXPECT_EQ(sidecar["tokenizer"]["eos_id"], 0);
  const std::vector<std::string> overrides{
      "data.train=set",        "data.sequence_length=8", "data.validation_fraction=0",
      "model.vocab_size=1500", "train.steps=1",          "train.run_dir=run"};
  const Result trained = run(scratch, train_args(overrides));
  EXPECT_EQ(trained.code, 0) << trained.err;
  const fs::path extra = step_directory(scratch / "run", 1) / "extra";
  EXPECT_EQ(read_file(extra / "tokenizer.json"), read_file(kGpt2));
  EXPECT_FALSE(fs::exists(extra / "tokenizer.model"));
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "out"});
  EXPECT_EQ(read_file(scratch / "out/tokenizer.json"), read_file(kGpt2));
  EXPECT_EQ(json::parse(read_file(scratch / "out/tokenizer_config.json"))["eos_token"],
            "<|endoftext|>");
  const json made =
      json::parse(run_ok(scratch, {"generate", "--model", "out", "--prompt", "The<|endoftext|>",
                                   "--max-tokens", "2", "--json", "--ignore-eos"}));
  EXPECT_EQ(made["ids"][made["ids"].size() - 3], 0) << made;
  EXPECT_TRUE(made["text"].get<std::string>().starts_with("The<|endoftext|>")) << made;
  EXPECT_NE(
      run_ok(scratch, {"eval", "--model", "out", "--data", "set", "--part", "all", "--length", "8"})
          .size(),
      0u);
}

}  // namespace
}  // namespace ashlar::integration
