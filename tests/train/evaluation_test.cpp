// The validation loss is one number: of a fixed set of sequences, whatever ranks and micro-batches
// evaluate it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/text.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"

namespace ashlar::train {
namespace {

using Overrides = std::vector<std::string>;

struct Way {
  int num_ranks;
  Overrides keys;
};

const std::vector<Way> kWays = {
    {1, {"train.micro_batch=1"}},
    {1, {"train.micro_batch=2"}},
    {1, {"train.micro_batch=8"}},
    {1, {"train.micro_batch=24"}},  // more rows than there are sequences
    {1, {"train.micro_batch=4", "train.recompute=true"}},
    {2, {"train.micro_batch=4", "parallel.zero=3"}},
    {3, {"train.micro_batch=1"}},
    {3, {"train.micro_batch=4", "parallel.zero=0"}},
    {12, {"train.micro_batch=1"}},
    {12, {"train.micro_batch=2"}},  // most ranks have no sequence of their own
    {2, {"train.micro_batch=3", "parallel.tp=2", "parallel.sequence_parallel=true"}},
    {2, {"train.micro_batch=3", "parallel.cp=2"}},
    {2, {"train.micro_batch=4", "parallel.tsp=2"}},
    {2, {"train.micro_batch=2", "parallel.pp=2"}},
    {4, {"train.micro_batch=6", "parallel.ep=4", "parallel.expert_rows=1"}},
    {4, {"train.micro_batch=2", "parallel.pp=2", "parallel.ep=2"}},
};

class Evaluation : public testing::Test {
 protected:
  Evaluation() {
    write("text", 3, 40, 0);
    write("large", 30, 33, 7);  // 30 sequences
    write("small", 3, 33, 99);
  }
  void write(const std::string& prefix, int documents, int64_t length, int32_t first) {
    std::vector<std::vector<int32_t>> all(static_cast<size_t>(documents));
    for (size_t d = 0; d < all.size(); ++d)
      for (int64_t i = 0; i < length; ++i)
        all[d].push_back(int32_t((first + 31 * int64_t(d) + i * i) % 256));
    data::write_documents(*files_, prefix, all, 256);
  }
  // The evaluation after the first step.
  nlohmann::json evaluation(const Way& way, Overrides more) {
    more.insert(more.end(), way.keys.begin(), way.keys.end());
    for (const char* fixed :
         {"data.train=text", "data.tokenizer=byte", "train.run_dir=run", "train.global_batch=24",
          "data.num_streams=24", "train.precision=fp64", "train.steps=1", "train.eval_every=1",
          "checkpoint.every=-1"})
      more.push_back(fixed);
    Log log([](std::string_view) {});
    files_->remove_all("run");
    start_run(load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", more), *files_, log,
              {way.num_ranks, {}});
    for (const std::string& line : split(read_text(*files_, "run/metrics.jsonl"), '\n'))
      if (line.find("\"evaluation\"") != std::string::npos) return nlohmann::json::parse(line);
    return {};
  }
  void expect_one_number(const Overrides& keys, int64_t num_targets) {
    double want = 0;
    for (const Way& way : kWays) {
      const nlohmann::json row = evaluation(way, keys);
      SCOPED_TRACE(::testing::PrintToString(way.keys) + " on " + std::to_string(way.num_ranks));
      ASSERT_TRUE(row.contains("validation_loss"));
      EXPECT_EQ(row.at("tokens"), num_targets);
      const double loss = row.at("validation_loss");
      if (want == 0) want = loss;
      EXPECT_NEAR(loss, want, 1e-10 * want);
    }
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
};

TEST_F(Evaluation, IsOfOneSetOfSequences) {
  expect_one_number({"data.validation=large", "train.eval_sequences=13"}, 13 * 32);
}

// Both have fewer than the recipe asks for; the small one is used up early.
TEST_F(Evaluation, TakesEachSequenceOfABlendOnce) {
  expect_one_number({"data.validation=large:0.5,small:0.5", "train.eval_sequences=1000"},
                    (30 + 3) * 32);
}

}  // namespace
}  // namespace ashlar::train
