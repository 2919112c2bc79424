// Whole runs under the health check.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "ashlar/core/text.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

// Ordinary texts with a few tables and encoded blobs among them, as real corpora have: their losses
// and gradient norms have long tails.
std::string mixed_texts() {
  std::mt19937_64 bits(1);
  const auto below = [&](uint64_t n) { return bits() % n; };
  std::vector<std::string> words(400);
  for (std::string& word : words)
    for (uint64_t left = 2 + below(6); left > 0; --left) word += "etaoinshrdlu"[below(12)];
  std::string lines;
  for (int document = 0; document < 3000; ++document) {
    const uint64_t kind = below(100);
    lines += "{\"text\": \"";
    if (kind < 90) {  // few words are frequent
      for (uint64_t left = 20 + below(70); left > 0; --left)
        lines += words[400 / (1 + below(400)) - 1] + " ";
    } else if (kind < 97) {
      for (int number = 0; number < 36; ++number)
        lines += std::to_string(below(1000)) + (number % 3 == 2 ? "\\n" : " | ");
    } else {
      for (int i = 0; i < 300; ++i) lines += "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"[below(38)];
    }
    lines += "\"}\n";
  }
  return lines;
}

// Judged by six deviations, each of these runs had ten steps skipped and ended with code 23.
TEST(Health, HealthyRunsOfSmallBatchesEndWell) {
  const Scratch scratch;
  write_file(scratch / "mixed.jsonl", mixed_texts());
  run_ok(scratch,
         {"data", "prepare", "--input", "mixed.jsonl", "--tokenizer", "byte", "--out", "mixed"});
  for (const std::string seed : {"2", "3", "4"}) {
    const Result result = run(
        scratch, train_args({"train.run_dir=run" + seed, "train.seed=" + seed, "data.train=mixed",
                             "data.sequence_length=128", "data.num_streams=1", "train.steps=700",
                             "train.micro_batch=1", "train.global_batch=1", "train.eval_every=0",
                             "train.log_every=100", "train.precision=fp32", "optim.warmup_steps=20",
                             "checkpoint.every=50", "model.layer_types=full_attention",
                             "model.intermediate_size=48"}));
    EXPECT_EQ(result.code, 0) << result.err;
    const nlohmann::json end = nlohmann::json::parse(
        read_file(step_directory(scratch / ("run" + seed), 700) / "extra/trainer.json"));
    EXPECT_LE(end.at("skipped").get<int>(), 2) << result.err;
  }
}

}  // namespace
}  // namespace ashlar::integration
