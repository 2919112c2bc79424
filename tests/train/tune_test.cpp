// Runs that train adapters alone, or freeze tensors: their steps hold what was trained, and with
// the model that they name give the whole model; a resumed run has the bits of one that was not
// stopped.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/text.h"
#include "ashlar/models/hf/write.h"
#include "ashlar/models/peft.h"
#include "ashlar/models/source.h"
#include "ashlar/models/tensor_reader.h"
#include "ashlar/nn/weights.h"
#include "ashlar/train/start.h"
#include "ashlar/train/training_flop.h"
#include "tests/data/support.h"
#include "tests/support/values.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::message_of;
using ashlar::testing_support::values_of;
using TuneOverrides = std::vector<std::string>;
using TensorValues = std::map<std::string, std::vector<double>>;

const TuneOverrides kAdapters = {"init.model=hf", "lora.rank=2", "lora.alpha=3",
                                 "lora.targets=attention", "optim.lr=0.01"};
const TuneOverrides kFrozen = {"init.model=hf",
                               "train.freeze=model.embed_tokens.*,model.input_*,*.mlp.experts.*,"
                               "*.o_proj.*"};

// A model of a few steps as the directory "hf", and runs that tune it, in memory.
class Tuning : public testing::Test {
 protected:
  Tuning() {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 200; ++d) {
      documents.emplace_back(size_t(20 + d * 7 % 60));
      for (size_t i = 0; i < documents.back().size(); ++i)
        documents.back()[i] = int32_t((size_t(d) * 31 + i * i) % 251);
    }
    data::write_documents(*files_, "text", documents, 256);
    train({"train.run_dir=donor", "train.steps=2"});
    export_as("donor/checkpoints", "hf");
  }

  Recipe recipe(const TuneOverrides& more) const {
    TuneOverrides all = {"data.train=text",      "data.tokenizer=byte", "train.eval_every=0",
                         "train.precision=fp32", "checkpoint.every=2",  "checkpoint.keep=9",
                         "optim.warmup_steps=1"};
    all.insert(all.end(), more.begin(), more.end());
    return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", all);
  }
  void train(const TuneOverrides& more, int num_ranks = 1) {
    said_.clear();
    start_run(recipe(more), *files_, log_, {num_ranks, {}});
  }
  static TuneOverrides with(TuneOverrides a, const TuneOverrides& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static std::string step_of(const std::string& run, int64_t step) {
    return run + "/checkpoints/" + checkpoint::step_name(step);
  }

  models::ModelSource source(const std::string& path) {
    return models::find_model(*files_, path, log_);
  }
  // The whole model that a path stands for.
  TensorValues model_values(const std::string& path) {
    const models::ModelSource from = source(path);
    return read(nn::logical_tensors(from.spec), [&](std::span<const Piece> pieces) {
      models::read_weights(*files_, from, pieces);
    });
  }
  // All tensors of floats that the files of a step hold.
  TensorValues stored_values(const std::string& step) {
    const models::StoredTensors stored{checkpoint::StepReader(*files_, step)};
    std::vector<LogicalTensor> tensors;
    for (const models::StoredTensor& tensor : stored.tensors())
      if (tensor.logical.role != Role::kLoader) tensors.push_back(tensor.logical);
    return read(tensors, [&](std::span<const Piece> pieces) { stored.read(pieces); });
  }
  template <typename Read>
  static TensorValues read(const std::vector<LogicalTensor>& tensors, Read fill) {
    Allocator allocator(Device::kCpu);
    std::vector<OwnedTensor> owned;
    std::vector<Piece> pieces;
    for (const LogicalTensor& t : tensors) {
      owned.push_back(make_tensor(allocator, t.dtype, t.global_shape, Tag::kWeights));
      pieces.push_back({t, Box::whole(t.global_shape), owned.back().tensor});
    }
    fill(pieces);
    TensorValues all;
    for (const Piece& piece : pieces) all[piece.logical.name] = values_of(piece.data);
    return all;
  }
  void export_as(const std::string& path, const std::string& directory) {
    const models::ModelSource from = source(path);
    models::HfWriteOptions options;
    options.dtype = DType::kF32;
    models::write_hf_model(*files_, directory, from.spec, models::StoredTensors(*files_, from),
                           options);
  }
  int64_t bytes_in(const std::string& directory) {
    int64_t bytes = 0;
    for (const std::string& name : files_->list(directory)) {
      const auto info = files_->stat(join(directory, name));
      bytes += info->type == FileInfo::Type::kDirectory ? bytes_in(join(directory, name))
                                                        : info->size_bytes;
    }
    return bytes;
  }
  bool says(const std::string& part) const { return said_.find(part) != std::string::npos; }

  std::unique_ptr<FileSystem> files_ = memory_files();
  std::string said_;
  Log log_{[this](std::string_view line) { said_ += std::string(line) + "\n"; }};
};

constexpr size_t kExpertsOfTiny = 4;

// Adds scale B A to every tensor with an adapter, by the formula.
TensorValues merged(TensorValues base, const TensorValues& step, double scale) {
  for (const auto& [name, a] : step) {
    if (!name.starts_with("model.") || !name.ends_with(".lora_A.weight")) continue;
    const std::string layer = name.substr(0, name.rfind(".lora_A"));
    const std::vector<double>& b = step.at(layer + ".lora_B.weight");
    const bool stack = base.contains(layer);
    std::vector<double>& w = base.at(stack ? layer : layer + ".weight");
    const size_t experts = stack ? kExpertsOfTiny : 1, rank = 2, cols = a.size() / rank / experts,
                 size = w.size() / experts;
    for (size_t i = 0; i < w.size(); ++i)
      for (size_t k = 0; k < rank; ++k)
        w[i] += scale * b[i / cols * rank + k] * a[(i / size * rank + k) * cols + i % cols];
    for (double& value : w) value = double(float(value));
  }
  return base;
}

void expect_close(const TensorValues& found, const TensorValues& want, double tolerance) {
  ASSERT_EQ(found.size(), want.size());
  for (const auto& [name, values] : want)
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], tolerance * std::max(1.0, std::abs(values[i])))
          << name << " " << i;
}

TEST_F(Tuning, AStepHoldsAdaptersAloneAndGivesTheMergedModel) {
  train(with(kAdapters, {"train.run_dir=lora", "train.steps=4"}));
  EXPECT_TRUE(says("tuning the weights of hf (")) << said_;
  EXPECT_TRUE(says(" trained parameters, ")) << said_;
  const TensorValues step = stored_values(step_of("lora", 4)), base = model_values("hf");
  size_t num_trained = 0;
  for (const auto& [name, values] : step) {
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
    num_trained += name.starts_with("model.");
  }
  EXPECT_EQ(step.size(), 3 * num_trained);  // each with two moments
  EXPECT_LT(3 * bytes_in(step_of("lora", 4)), bytes_in(step_of("donor", 2)));
  expect_close(model_values("lora"), merged(base, step, 1.5), 1e-7);
  EXPECT_NE(model_values("lora"), base);
  export_as("lora", "tuned");
  EXPECT_EQ(model_values("tuned"), model_values("lora"));
}

TEST_F(Tuning, MergesAdaptersOfExperts) {
  const TuneOverrides experts = with(kAdapters, {"train.steps=4", "lora.targets=experts"});
  const TensorValues base = model_values("hf");
  for (const std::string precision : {"fp32", "bf16"}) {
    train(with(experts, {"train.run_dir=" + precision, "train.precision=" + precision}));
    const TensorValues step = stored_values(step_of(precision, 4)), found = model_values(precision);
    expect_close(found, merged(base, step, 1.5), 1e-7);
    EXPECT_NE(found, base);
  }
  expect_close(model_values("bf16"), model_values("fp32"), 1e-2);
  EXPECT_NE(message_of(ErrorKind::kConfig,
                       [&] { models::write_peft_adapter(*files_, "adapter", source("fp32")); })
                .find("is a stack of experts"),
            std::string::npos);
  train(with(experts, {"train.run_dir=ep", "parallel.ep=2", "parallel.zero=3"}), 2);
  expect_close(model_values("ep"), model_values("fp32"), 1e-4);
}

TEST_F(Tuning, BeginsWithTheLossOfTheModel) {
  const TuneOverrides one = {"train.steps=1", "train.eval_every=1", "optim.lr=0", "optim.lr_min=0"};
  train(with(kAdapters, with(one, {"train.run_dir=lora"})));
  train(with(one, {"init.model=hf", "train.run_dir=whole", "moe.balance.lr=0"}));
  const auto losses = [&](const std::string& run) {
    std::vector<std::string> found;
    for (const std::string& line : split(read_text(*files_, run + "/metrics.jsonl"), '\n')) {
      const size_t at = line.find("\"loss\":");
      if (at != std::string::npos) found.push_back(line.substr(at, line.find(',', at) - at));
    }
    return found;
  };
  EXPECT_FALSE(losses("lora").empty());
  EXPECT_EQ(losses("lora"), losses("whole"));
}

TEST_F(Tuning, AResumedRunHasTheSameBits) {
  const std::pair<std::string, TuneOverrides> kinds[] = {{"lora", kAdapters}, {"frozen", kFrozen}};
  for (const auto& [kind, keys] : kinds) {
    train(with(keys, {"train.run_dir=" + kind + "-once", "train.steps=4"}));
    train(with(keys, {"train.run_dir=" + kind + "-twice", "train.steps=4"}));
    // As if the run had been killed before step 4 was committed.
    files_->remove(join(step_of(kind + "-twice", 4), checkpoint::kCommitName));
    train(with(keys, {"train.run_dir=" + kind + "-twice", "train.steps=4"}));
    EXPECT_TRUE(says("continuing after step 2 ")) << said_;
    EXPECT_EQ(stored_values(step_of(kind + "-once", 4)),
              stored_values(step_of(kind + "-twice", 4)));
    EXPECT_EQ(model_values(kind + "-once"), model_values(kind + "-twice"));
  }
}

// Frozen products are kept in bf16 there; steps and whole models are what they are in fp32.
TEST_F(Tuning, InBf16AResumedRunHasTheSameBits) {
  const TuneOverrides bf16 = with(kAdapters, {"train.precision=bf16", "train.steps=4"});
  train(with(bf16, {"train.run_dir=once"}));
  train(with(bf16, {"train.run_dir=twice"}));
  files_->remove(join(step_of("twice", 4), checkpoint::kCommitName));
  train(with(bf16, {"train.run_dir=twice"}));
  EXPECT_TRUE(says("continuing after step 2 ")) << said_;
  const TensorValues step = stored_values(step_of("once", 4));
  EXPECT_EQ(step, stored_values(step_of("twice", 4)));
  expect_close(model_values("once"), merged(model_values("hf"), step, 1.5), 1e-7);
  EXPECT_NE(model_values("once"), model_values("hf"));
}

TEST_F(Tuning, GoesOnOnAnotherLayout) {
  train(with(kAdapters, {"train.run_dir=a", "train.steps=2"}));
  train(with(kAdapters, {"train.run_dir=b", "train.steps=2"}));
  train(with(kAdapters, {"train.run_dir=a", "train.steps=4"}));
  train(with(kAdapters, {"train.run_dir=b", "train.steps=4", "parallel.tp=2", "parallel.zero=3"}),
        4);
  expect_close(model_values("b"), model_values("a"), 1e-4);
}

TEST_F(Tuning, FrozenTensorsStayAndAreNotSaved) {
  train(with(kFrozen, {"train.run_dir=frozen", "train.steps=2"}));
  const TensorValues step = stored_values(step_of("frozen", 2)), base = model_values("hf"),
                     now = model_values("frozen");
  const TuneSpec tune = recipe(kFrozen).tune;
  size_t num_frozen = 0, num_moved = 0;
  for (const auto& [name, values] : base) {
    EXPECT_EQ(step.contains(name), !tune.freezes(name)) << name;
    num_frozen += tune.freezes(name);
    num_moved += now.at(name) != values;
    if (tune.freezes(name)) {
      EXPECT_EQ(now.at(name), values) << name;
    }
  }
  EXPECT_GT(num_frozen, 3u);
  EXPECT_EQ(num_frozen + num_moved, base.size());
}

TEST_F(Tuning, AnotherRunBeginsWithTheMergedModel) {
  train(with(kAdapters, {"train.run_dir=lora", "train.steps=2"}));
  train({"train.run_dir=next", "init.model=lora", "train.steps=1", "optim.lr=0", "optim.lr_min=0",
         "moe.balance.lr=0", "moe.balance.target=all_classes"});
  EXPECT_EQ(model_values("next"), model_values("lora"));
}

TEST_F(Tuning, RefusesAnotherModelUnderItsSteps) {
  train(with(kAdapters, {"train.run_dir=lora", "train.steps=2"}));
  train({"train.run_dir=donor", "train.steps=3"});
  export_as("donor/checkpoints", "other");
  const auto go_on = [&](const TuneOverrides& more) {
    return message_of(ErrorKind::kConfig,
                      [&] { train(with(with(kAdapters, {"train.run_dir=lora"}), more)); });
  };
  EXPECT_NE(go_on({"init.model=other"}).find("its files are others"), std::string::npos);
  const std::string of_whole = message_of(ErrorKind::kConfig, [&] {
    train(with(kAdapters, {"train.run_dir=donor", "train.steps=5"}));
  });
  EXPECT_NE(of_whole.find("made by a run that trained all tensors"), std::string::npos);
}

// Two products of an adapter forward and twice two backward; of a frozen weight no gradient.
TEST_F(Tuning, CountsTheFlopOfWhatIsTrained) {
  const Recipe whole = recipe({}), tuned = recipe(kAdapters);
  double frozen = 0, adapters = 0;
  const nn::ModelWeights weights(model_of(tuned.model), {}, {}, tuned.tune);
  for (const nn::Stored& stored : weights.tensors) {
    if (stored.is_adapter) adapters += double(stored.shape.numel());
    if (stored.is_frozen() && stored.is_operand())
      frozen += double(stored.shape.numel()) /
                (stored.operand_shape.ndim() == 3 &&
                         stored.logical[0].name.find("experts") != std::string::npos
                     ? double(tuned.model.num_experts)
                     : 1.0);
  }
  EXPECT_DOUBLE_EQ(training_flop(tuned), training_flop(whole) - 2 * frozen + 6 * adapters);
  EXPECT_LT(training_flop(tuned), training_flop(whole));
}

}  // namespace
}  // namespace ashlar::train
