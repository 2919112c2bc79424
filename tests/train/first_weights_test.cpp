// A run that begins with the weights of another: those weights and nothing else of it, on any
// layout; and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/core/text.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/source.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/weights.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::message_of;
using models::ModelSource;
using nlohmann::json;
using Overrides = std::vector<std::string>;
using Values = std::map<std::string, std::vector<double>>;  // tensors by name

// Whole tensors, read as F64, which holds every F32 exactly.
struct Whole {
  Allocator allocator{Device::kCpu};
  std::vector<OwnedTensor> owned;
  std::vector<Piece> pieces;

  explicit Whole(const std::vector<LogicalTensor>& tensors) {
    for (const LogicalTensor& t : tensors) {
      owned.push_back(make_tensor(allocator, DType::kF64, t.global_shape, Tag::kWeights));
      pieces.push_back({t, Box::whole(t.global_shape), owned.back().tensor});
    }
  }
  Values values() const {
    Values all;
    for (const Piece& piece : pieces) {
      const auto numbers = piece.data.span<double>();
      all[piece.logical.name] = {numbers.begin(), numbers.end()};
    }
    return all;
  }
};

// "" if all numbers are equal, else the first that is not.
std::string difference(const Values& a, const Values& b) {
  if (a.size() != b.size() || a.empty()) return fmt::format("{}, {} tensors", a.size(), b.size());
  for (const auto& [name, x] : a) {
    const auto at = b.find(name);
    if (at == b.end() || at->second.size() != x.size()) return name;
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] != at->second[i]) return fmt::format("{}[{}] {} {}", name, i, x[i], at->second[i]);
  }
  return "";
}

// A run of some steps, "donor", in memory; and runs that begin with its weights.
class FirstWeights : public testing::Test {
 protected:
  FirstWeights() {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 200; ++d) {
      documents.emplace_back(size_t(20 + d * 7 % 60));
      for (size_t i = 0; i < documents.back().size(); ++i)
        documents.back()[i] = int32_t((size_t(d) * 31 + i * i) % 251);
    }
    data::write_documents(*files_, "text", documents, 256);
    train({"train.run_dir=donor", "train.steps=3", "train.eval_every=3"});
  }

  Recipe recipe(const Overrides& more) const {
    Overrides all = {"data.train=text",      "data.tokenizer=byte", "train.eval_every=0",
                     "train.precision=fp32", "checkpoint.every=0",  "moe.balance.lr=0.01",
                     "optim.warmup_steps=1"};
    all.insert(all.end(), more.begin(), more.end());
    return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", all);
  }
  void train(const Overrides& more, int num_ranks = 1) {
    said_.clear();
    start_run(recipe(more), *files_, log_, {num_ranks, {}});
  }
  // A run of another seed that begins with weights, which its one update leaves as they are.  (With
  // the other target that update centres the balancing biases, whatever the rate.)
  static Overrides one_look(const std::string& directory, const std::string& model) {
    return {"train.run_dir=" + directory,
            "init.model=" + model,
            "train.seed=77",
            "train.steps=1",
            "optim.lr=0",
            "optim.lr_min=0",
            "moe.balance.lr=0",
            "moe.balance.target=all_classes"};
  }
  static Overrides with(Overrides a, const Overrides& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  ModelSource source(const std::string& path) { return models::find_model(*files_, path, log_); }
  Values weights(const std::string& path) {
    const ModelSource from = source(path);
    const Whole whole(nn::logical_tensors(from.spec));
    models::read_weights(*files_, from, whole.pieces);
    return whole.values();
  }
  // Moments of weights and of balancing.
  Values optimizer_state(const std::string& step) {
    const checkpoint::StepReader reader(*files_, step);
    std::vector<LogicalTensor> tensors;
    for (const checkpoint::IndexTensor& tensor : reader.index().tensors)
      if (tensor.logical.role == Role::kOptimizerState) tensors.push_back(tensor.logical);
    const Whole whole(tensors);
    checkpoint::LoadOptions options;
    options.allow_unexpected = {"*"};
    options.cast = {{DType::kF32, DType::kF64}};
    reader.load(whole.pieces, options);
    return whole.values();
  }
  std::vector<json> rows(const std::string& directory) {
    std::vector<json> all;
    for (const std::string& line : split(read_text(*files_, directory + "/metrics.jsonl"), '\n'))
      if (!line.empty()) all.push_back(json::parse(line));
    return all;
  }
  std::vector<double> losses(const std::string& directory) {
    std::vector<double> all;
    for (const json& row : rows(directory))
      if (!row.contains("event")) all.push_back(row.at("loss"));
    return all;
  }
  double validation_loss(const std::string& directory) {
    for (const json& row : rows(directory))
      if (row.contains("validation_loss")) return row.at("validation_loss");
    return std::nan("");
  }

  using Change = std::function<void(std::vector<Piece>&)>;
  // The donor's weights as a directory of Hugging Face, in fp32, or as step 7 of a root.
  void export_to(const std::string& directory) {
    const ModelSource from = source(kDonor);
    const Whole whole(nn::logical_tensors(from.spec));
    models::read_weights(*files_, from, whole.pieces);
    models::HfWriteOptions options;
    options.dtype = DType::kF32;
    models::write_hf_model(*files_, directory, from.spec, whole.pieces, options);
  }
  void import_to(const std::string& root, const Change& change = {}) {
    const ModelSource from = source(kDonor);
    Whole whole(nn::logical_tensors(from.spec));
    models::read_weights(*files_, from, whole.pieces);
    for (Piece& piece : whole.pieces) piece.logical.dtype = DType::kF64;
    if (change) change(whole.pieces);
    checkpoint::CheckpointOptions options;
    options.async = false;
    checkpoint::Checkpointer checkpoints(*files_, root, options, log_);
    checkpoint::SaveRequest request;
    request.step = 7;
    request.model = whole.pieces;
    request.extra = {
        {models::kConfigFile,
         models::to_hf_config(from.spec, DType::kF32, models::HfLayout::kNative), true},
        {models::kModelFile, to_json(from.spec), true}};
    checkpoints.save(request);
  }
  void damage_middle(const std::string& path) {
    std::string text = read_text(*files_, path);
    text[text.size() / 2] = char(text[text.size() / 2] ^ 1);
    files_->remove(path);
    write_text(*files_, path, text);
  }
  bool says(const std::string& part) const { return said_.find(part) != std::string::npos; }

  inline static const std::string kDonor = "donor/checkpoints";
  inline static const std::string kStep = kDonor + "/step-000000000003";
  inline static const std::string kShard =
      kStep + "/model/shard-00001-model-00001-of-00001.safetensors";
  std::unique_ptr<FileSystem> files_ = memory_files();
  std::string said_;
  Log log_{[this](std::string_view line) { said_ += std::string(line) + "\n"; }};
};

std::string step_of(const std::string& directory, int64_t step) {
  return join(directory + "/checkpoints", checkpoint::step_name(step));
}

TEST_F(FirstWeights, AreThoseOfTheSourceBitForBit) {
  export_to("hf");
  import_to("imported");
  train({"train.run_dir=other", "train.seed=77", "train.steps=1"});
  const Values expected = weights(kDonor);
  ASSERT_NE(difference(expected, weights("other/checkpoints")), "");
  const double loss = validation_loss("donor");
  for (const std::string& model : {kDonor, kStep, std::string("hf"), std::string("imported")}) {
    train(with(one_look("new-" + model, model), {"train.eval_every=1"}));
    EXPECT_TRUE(says("starting from the weights of " + model + " (")) << said_;
    EXPECT_FALSE(says("warning")) << said_;
    EXPECT_EQ(difference(weights("new-" + model + "/checkpoints"), expected), "") << model;
    EXPECT_EQ(validation_loss("new-" + model), loss) << model;
  }
  EXPECT_TRUE(says("(step 7 of run ")) << said_;
}

TEST_F(FirstWeights, OptimizerDataAndCountersBeginAnew) {
  export_to("hf");
  const Overrides run = {"train.steps=3", "train.seed=5"};
  train(with(run, {"train.run_dir=a", "init.model=" + kDonor, "checkpoint.every=1"}));
  train(with(run, {"train.run_dir=b", "init.model=hf"}));  // which holds no moments
  EXPECT_EQ(losses("a").size(), 3u);
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(difference(weights("a/checkpoints"), weights("b/checkpoints")), "");
  EXPECT_EQ(difference(optimizer_state(step_of("a", 3)), optimizer_state(step_of("b", 3))), "");
  // After one update from moments of zero: m = (1 - beta1) g and v = (1 - beta2) g^2.
  const Values first = optimizer_state(step_of("a", 1));
  size_t compared = 0;
  for (const auto& [name, squares] : first) {
    const std::string sq = "optim.exp_avg_sq.";
    if (!name.starts_with(sq)) continue;
    const std::vector<double>& means = first.at("optim.exp_avg." + name.substr(sq.size()));
    for (size_t i = 0; i < means.size(); ++i, ++compared) {
      const double g = means[i] / 0.1;
      ASSERT_NEAR(squares[i], 0.05 * g * g, 1e-5 * squares[i] + 1e-30) << name << " " << i;
    }
  }
  EXPECT_GT(compared, 500u);
  json row = rows("a").front();
  for (const json& next : rows("a"))
    if (row.contains("event")) row = next;
  EXPECT_EQ(row.at("step"), 1);
  EXPECT_EQ(row.at("samples"), 4);
  EXPECT_EQ(row.at("skipped"), 0);
  // The first data of a seed are what they are without init.model.
  train(with(run, {"train.run_dir=c", "train.steps=1"}));
  const auto cursor = [&](const std::string& directory) {
    return read_text(*files_, step_of(directory, 1) + "/loader/streams-00000.safetensors");
  };
  EXPECT_EQ(cursor("a").substr(cursor("a").size() / 2), cursor("c").substr(cursor("c").size() / 2));
}

struct WeightsLayout {
  std::string name;
  int num_ranks;
  Overrides overrides;
};

void PrintTo(const WeightsLayout& layout, std::ostream* out) {
  *out << layout.name;
}

class FirstWeightsOnRanks : public FirstWeights,
                            public testing::WithParamInterface<WeightsLayout> {};

TEST_P(FirstWeightsOnRanks, AreReadByBoxes) {
  export_to("hf");
  const auto& [name, num_ranks, layout] = GetParam();
  const Values expected = weights(kDonor);
  train({"train.run_dir=one", "init.model=" + kDonor, "train.steps=3"});
  const std::vector<double> alone = losses("one");
  for (const std::string& model : {kDonor, std::string("hf")}) {
    train(with(one_look("still-" + model, model), layout), num_ranks);
    EXPECT_EQ(difference(weights("still-" + model + "/checkpoints"), expected), "") << model;
    train(with({"train.run_dir=new-" + model, "init.model=" + model, "train.steps=3"}, layout),
          num_ranks);
    const std::vector<double> found = losses("new-" + model);
    ASSERT_EQ(found.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(found[i], alone[i], 1e-5) << model << i;
  }
  // One rank begins with what several saved.
  train(one_look("back", "still-hf/checkpoints"));
  EXPECT_EQ(difference(weights("back/checkpoints"), expected), "");
  damage_middle(kShard);
  const std::string told = message_of(ErrorKind::kCorrupt, [&] {
    train(with({"train.run_dir=bad", "init.model=" + kStep}, layout), num_ranks);
  });
  EXPECT_NE(told.find(kShard), std::string::npos) << told;
  EXPECT_FALSE(files_->stat("bad"));
}

INSTANTIATE_TEST_SUITE_P(All, FirstWeightsOnRanks,
                         testing::Values(WeightsLayout{"dp2_zero0", 2, {"parallel.zero=0"}},
                                         WeightsLayout{"dp2_zero3", 2, {"parallel.zero=3"}},
                                         WeightsLayout{"tp2", 2, {"parallel.tp=2"}},
                                         WeightsLayout{"cp2", 2, {"parallel.cp=2"}},
                                         WeightsLayout{"dp2_tp2_zero3_bucketed",
                                                       4,
                                                       {"parallel.tp=2", "parallel.zero=3",
                                                        "parallel.zero_layout=bucketed",
                                                        "parallel.bucket_bytes=20000"}}),
                         [](const auto& info) { return info.param.name; });

TEST_F(FirstWeights, LengthsBasesWindowsAndPrecisionMayDiffer) {
  const Values expected = weights(kDonor);
  const Overrides longer = {"data.sequence_length=64", "model.max_position_embeddings=512",
                            "model.rope_theta=1e6", "model.layer_types=alternate",
                            "model.sliding_window=17"};
  for (const char* precision : {"fp32", "fp64", "bf16"}) {
    const std::string directory = std::string("new-") + precision;
    train(with(with(one_look(directory, kDonor), longer),
               {std::string("train.precision=") + precision}));
    EXPECT_EQ(difference(weights(directory + "/checkpoints"), expected), "") << precision;
    const std::string changed[][3] = {{"layer_types", "\"alternate\"", "\"hybrid\""},
                                      {"rope_theta", "1000000.0", "10000.0"},
                                      {"max_position_embeddings", "512", "256"},
                                      {"sliding_window", "17", "0"}};
    for (const auto& [key, is, was] : changed)
      EXPECT_TRUE(
          says(fmt::format("warning: model.{} is {} in the recipe but {} in {}; the "
                           "recipe's value holds\n",
                           key, is, was, kDonor)))
          << said_;
    EXPECT_FALSE(says("skip_output") || says("optim.")) << said_;
  }
  // The F64 weights of that run, which no F32 run wrote.
  train(one_look("narrow", "new-fp64/checkpoints"));
  EXPECT_EQ(difference(weights("narrow/checkpoints"), expected), "");
}

TEST_F(FirstWeights, OtherSizesAreRefusedByTheirKeys) {
  export_to("hf");
  const struct {
    const char *key, *value, *there;
  } cases[] = {{"model.hidden_size", "64", "32"},       {"model.vocab_size", "384", "320"},
               {"model.num_experts", "2", "4"},         {"model.num_hidden_layers", "3", "2"},
               {"model.num_attention_heads", "2", "4"}, {"model.router_hidden_size", "8", "16"}};
  for (const std::string& model : {kDonor, std::string("hf")})
    for (const auto& c : cases) {
      const std::string told = message_of(ErrorKind::kConfig, [&] {
        train({"train.run_dir=new", "init.model=" + model, fmt::format("{}={}", c.key, c.value)});
      });
      EXPECT_NE(told.find(fmt::format("{} is {} but {} has {}; ", c.key, c.value, model, c.there)),
                std::string::npos)
          << told;
      EXPECT_FALSE(files_->stat("new"));
    }
}

// Sizes of experts say nothing of a model without any.
TEST_F(FirstWeights, DenseModelsGoOnWhateverUnusedKeysSay) {
  const Overrides dense = {"model.layer_types=full_attention", "model.intermediate_size=40"};
  train(with(dense, {"train.run_dir=dense", "train.steps=2"}));
  const Values expected = weights("dense/checkpoints");
  train(with(with(one_look("again", "dense/checkpoints"), dense), {"model.num_experts=7"}));
  EXPECT_EQ(difference(weights("again/checkpoints"), expected), "");
  EXPECT_NE(message_of(ErrorKind::kConfig,
                       [&] {
                         train({"train.run_dir=other", "init.model=dense/checkpoints"});
                       })
                .find("model.layer_types is \"hybrid\" but dense/checkpoints has "
                      "\"full_attention\""),
            std::string::npos);
}

TEST_F(FirstWeights, WhatIsNoModelOrIsDamagedIsRefused) {
  files_->make_directories("empty");
  const auto told = [&](ErrorKind kind, const std::string& model) {
    const std::string message = message_of(kind, [&] {
      train({"train.run_dir=new", "init.model=" + model});
    });
    EXPECT_FALSE(files_->stat("new")) << message;
    return message;
  };
  EXPECT_TRUE(told(ErrorKind::kConfig, "nowhere").starts_with("init.model is nowhere, which does"));
  EXPECT_TRUE(told(ErrorKind::kConfig, "empty").starts_with("empty: expected a Hugging Face"));

  const std::string lost = "model.layers.1.self_attn.o_proj.weight";
  import_to("partial", [&](std::vector<Piece>& pieces) {
    std::erase_if(pieces, [&](const Piece& piece) { return piece.logical.name == lost; });
  });
  EXPECT_NE(told(ErrorKind::kCorrupt, "partial").find("no tensor " + lost), std::string::npos);
  import_to("infinite", [&](std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces)
      if (piece.logical.name == lost)
        piece.data.span<double>()[5] = std::numeric_limits<double>::infinity();
  });
  EXPECT_NE(told(ErrorKind::kNumeric, "infinite").find(lost + "[5] is inf"), std::string::npos);

  damage_middle(kShard);
  EXPECT_NE(told(ErrorKind::kCorrupt, kStep).find(kShard), std::string::npos);
  EXPECT_NE(told(ErrorKind::kCorrupt, kDonor).find(kShard), std::string::npos);
}

TEST_F(FirstWeights, ARunThatGoesOnDoesNotLookForThem) {
  const Overrides run = {"init.model=" + kDonor, "checkpoint.every=2"};
  train(with(run, {"train.run_dir=straight", "train.steps=5"}));
  train(with(run, {"train.run_dir=halves", "train.steps=5"}));
  // As if it had been killed after step 2.
  files_->remove_all(step_of("halves", 5));
  files_->remove_all(step_of("halves", 4));
  files_->remove_all("donor");
  train(with(run, {"train.run_dir=halves", "train.steps=5"}));
  EXPECT_TRUE(says("continuing after step 2 ")) << said_;
  EXPECT_FALSE(says("starting from")) << said_;
  EXPECT_EQ(losses("halves"), losses("straight"));
  EXPECT_EQ(difference(weights("halves/checkpoints"), weights("straight/checkpoints")), "");
  // The steps that are there are damaged: no new start over them either.
  for (const int64_t step : {2, 4, 5}) damage_middle(step_of("halves", step) + "/COMMIT");
  message_of(ErrorKind::kCorrupt, [&] { train(with(run, {"train.run_dir=halves"})); });
}

TEST_F(FirstWeights, AnImportedRootCannotGoOnAndNamesInitModel) {
  import_to("run/checkpoints");
  const std::string step = step_of("run", 7);
  const auto names = files_->list(step);
  const std::string told = message_of(ErrorKind::kConfig, [&] {
    train({"train.run_dir=run", "train.steps=9"});
  });
  EXPECT_NE(told.find("init.model=" + step), std::string::npos) << told;
  EXPECT_EQ(files_->list(step), names) << "the step was set aside";
  train({"train.run_dir=new", "train.steps=1", "init.model=run/checkpoints"});
  EXPECT_EQ(losses("new").size(), 1u);
}

// Neither weights nor the place of weights are looked for.
TEST_F(FirstWeights, ADryRunNeedsNone) {
  const RunPlan with_key = plan_run(recipe({"init.model=nowhere"}), DType::kF32);
  const RunPlan without = plan_run(recipe({}), DType::kF32);
  EXPECT_EQ(with_key.memory.total.peak_bytes, without.memory.total.peak_bytes);
}

}  // namespace
}  // namespace ashlar::train
