// Padding takes no part in anything: rows of documents that fill them give the same numbers as
// longer rows with the same documents, whatever the router and the layout are.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/text.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"

namespace ashlar::train {
namespace {

using Overrides = std::vector<std::string>;
using Rows = std::vector<nlohmann::json>;

Overrides with_more(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Overrides kLinear = {"model.layer_types=attention+moe",
                           "model.router=linear",
                           "model.num_experts_per_tok=2",
                           "model.router_expert_bias=true",
                           "model.shared_expert_intermediate_size=24",
                           "model.shared_expert_gate=true",
                           "moe.router_aux_loss_coef=0.1",
                           "moe.router_z_loss_coef=0.1",
                           "moe.balance.lr=0.05"};
const Overrides kZaya = {"moe.balance.lr=0.05", "moe.balance.target=all_classes"};

struct PaddedCase {
  std::string name;
  int num_ranks;
  Overrides model, layout = {};
};

const std::vector<PaddedCase> kPaddedCases = {
    {"linear", 1, kLinear},
    {"linear without renormalisation", 1, with_more(kLinear, {"model.norm_topk_prob=false"})},
    {"linear without losses", 1,
     with_more(kLinear, {"moe.router_aux_loss_coef=0", "moe.router_z_loss_coef=0"})},
    {"linear, biases of each micro-batch", 1,
     with_more(kLinear, {"moe.balance.scope=micro_batch"})},
    {"linear, recomputed", 1, with_more(kLinear, {"train.recompute=true"})},
    {"linear, rows in one document", 1, with_more(kLinear, {"data.document_reset=false"})},
    {"linear, masked", 1, with_more(kLinear, {"data.mask_document_end=true"})},
    {"linear mixers", 1, with_more(kLinear, {"model.layer_types=linear+moe"})},
    {"linear mixers without mask", 1,
     with_more(kLinear, {"model.layer_types=linear+moe", "model.linear_causal=false",
                         "data.document_reset=false"})},
    {"zaya", 1, kZaya},
    {"zaya with identity", 1,
     with_more(kZaya, {"moe.skip_output=identity", "train.recompute=true"})},
    {"zaya, biases of each micro-batch", 1, with_more(kZaya, {"moe.balance.scope=micro_batch"})},
    {"linear dp4", 4, kLinear},
    {"linear ep2", 2, kLinear, {"parallel.ep=2", "parallel.expert_rows=1"}},
    {"linear tp2", 2, kLinear, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
    {"linear cp2", 2, kLinear, {"parallel.cp=2"}},
    {"linear tsp2", 2, kLinear, {"parallel.tsp=2"}},
    {"linear pp2", 2, kLinear, {"parallel.pp=2"}},
    {"zaya ep4", 4, kZaya, {"parallel.ep=4"}},
    {"zaya tsp2", 2, kZaya, {"parallel.tsp=2"}},
    {"zaya pp2, cp2, ep2", 4, kZaya, {"parallel.pp=2", "parallel.cp=2", "parallel.ep=2"}},
};

class Padding : public testing::TestWithParam<PaddedCase> {
 protected:
  Padding() {
    // Packing makes the same rows of these documents, whether or not they fill them.
    write("one", {17});
    write("two", {12, 5});
  }
  // 16 rows of documents of these lengths.
  void write(const std::string& prefix, const std::vector<int64_t>& lengths) {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t row = 0; row < 16; ++row)
      for (const int64_t length : lengths) {
        documents.emplace_back();
        for (int64_t i = 0; i < length; ++i)
          documents.back().push_back(int32_t((7 + 31 * row + i * i * 3 + length) % 256));
      }
    data::write_documents(*files_, prefix, documents, 256);
  }
  Rows steps(const std::string& data, int64_t length, const Overrides& more = {}) {
    Overrides keys = with_more(GetParam().model, GetParam().layout);
    for (const std::string& key :
         {"data.train=" + data, "data.sequence_length=" + std::to_string(length),
          std::string("data.packing=best_fit"), std::string("data.validation_fraction=0"),
          std::string("data.tokenizer=byte"), std::string("data.num_streams=16"),
          std::string("train.run_dir=run"), std::string("train.global_batch=16"),
          std::string("train.precision=fp64"), std::string("train.steps=3"),
          std::string("train.log_every=1"), std::string("train.eval_every=0"),
          std::string("checkpoint.every=-1")})
      keys.push_back(key);
    files_->remove_all("run");
    Log log([](std::string_view) {});
    start_run(load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", with_more(keys, more)), *files_,
              log, {GetParam().num_ranks, {}});
    Rows rows;
    for (const std::string& line : split(read_text(*files_, "run/metrics.jsonl"), '\n'))
      if (line.starts_with("{\"step\"")) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }
  static void expect_same(const Rows& want, const Rows& got, double tolerance) {
    ASSERT_EQ(want.size(), 3u);
    ASSERT_EQ(got.size(), 3u);
    for (size_t step = 0; step < want.size(); ++step)
      for (const char* name :
           {"loss", "gradient_norm", "aux_loss", "z_loss", "load_entropy", "max_load"}) {
        ASSERT_EQ(want[step].contains(name), got[step].contains(name)) << name;
        if (!want[step].contains(name)) continue;
        const double value = want[step].at(name);
        EXPECT_NEAR(got[step].at(name).get<double>(), value, tolerance * std::abs(value))
            << name << " of step " << step + 1;
      }
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
};

TEST_P(Padding, ChangesNoNumber) {
  for (const auto& [data, lengths] :
       std::map<std::string, std::vector<int64_t>>{{"one", {20, 32}}, {"two", {20}}}) {
    const Rows want = steps(data, 16);
    for (const int64_t length : lengths) {
      SCOPED_TRACE(data + " in rows of " + std::to_string(length));
      expect_same(want, steps(data, length), 1e-10);
    }
  }
}

TEST_P(Padding, ChangesNoNumberOfFp32) {
  if (!GetParam().layout.empty()) return;  // one rank's rounding is enough
  const Overrides fp32 = {"train.precision=fp32"};
  expect_same(steps("one", 16, fp32), steps("one", 32, fp32), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Cases, Padding, testing::ValuesIn(kPaddedCases), [](const auto& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

}  // namespace
}  // namespace ashlar::train
