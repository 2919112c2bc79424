// Starts that go on with a run under another recipe: what they take over, and what they say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "ashlar/models/tensor_reader.h"
#include "ashlar/train/start.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

class GoingOn : public testing::Test {
 protected:
  GoingOn() {
    std::vector<std::vector<int32_t>> other;
    for (int32_t d = 0; d < 300; ++d) other.emplace_back(size_t(1 + d % 50), 3 + d % 97);
    data::write_documents(*files_, root_ / "other", other, 256);
  }
  // The lines that the start prints; warnings begin with "warning: ".
  std::vector<std::string> start(std::vector<std::string> overrides, int num_ranks = 1) {
    for (const char* fixed : {"train.eval_every=0", "checkpoint.every=0", "train.precision=fp32"})
      overrides.insert(overrides.begin(), fixed);
    std::vector<std::string> lines;
    Log log([&](std::string_view line) { lines.emplace_back(line); });
    Start how;
    how.num_ranks = num_ranks;
    start_run(tiny_run(*files_, root_, overrides), *files_, log, how);
    return lines;
  }
  std::string other() const { return root_ / "other"; }
  std::string text() const { return root_ / "text"; }
  std::string step(int64_t number) const {
    return root_ / fmt::format("run/checkpoints/step-{:012}", number);
  }
  nlohmann::json trainer_state(int64_t number) {
    return nlohmann::json::parse(read_text(*files_, step(number) + "/extra/trainer.json"));
  }
  std::vector<nlohmann::json> steps() {
    std::vector<nlohmann::json> steps;
    for (nlohmann::json& row : rows_of(*files_, root_))
      if (!row.contains("event")) steps.push_back(std::move(row));
    return steps;
  }
  const std::unique_ptr<FileSystem> files_ = posix_files();
  const TemporaryDirectory root_;
};

// Lines that contain the text.
std::vector<std::string> with_text(const std::vector<std::string>& lines, std::string_view text) {
  std::vector<std::string> found;
  for (const std::string& line : lines)
    if (line.find(text) != line.npos) found.push_back(line);
  return found;
}

using Lines = std::vector<std::string>;

TEST_F(GoingOn, WindowsBeginAnewWhereLossesCannotBeCompared) {
  start({"train.steps=10", "optim.schedule=constant"});
  const auto values = [&](int64_t number) {
    return trainer_state(number).at("losses_f64_bits").size();
  };
  EXPECT_EQ(values(10), 10u);
  const std::vector<std::string> batch = {"optim.schedule=constant", "train.global_batch=8",
                                          "data.num_streams=4"};
  const auto with = [](Lines lines, const Lines& more) {
    lines.insert(lines.end(), more.begin(), more.end());
    return lines;
  };
  const std::string anew = "the window of health.window steps begins anew, because these changed: ";
  EXPECT_EQ(with_text(start(with(batch, {"train.steps=14"})), anew),
            Lines{anew + "train.global_batch"});
  EXPECT_EQ(values(14), 4u);
  EXPECT_EQ(with_text(start(with(batch, {"train.steps=16", "train.micro_batch=1"})), anew),
            Lines{});
  EXPECT_EQ(values(16), 6u);
  EXPECT_EQ(with_text(start(with(batch, {"train.steps=17", "optim.lr=1e-3"})), anew),
            Lines{anew + "the learning rate"});
  EXPECT_EQ(values(17), 1u);
  const Lines longer = with(batch, {"train.steps=19", "optim.lr=1e-3", "data.sequence_length=16",
                                    "data.allow_dataset_change=true"});
  EXPECT_EQ(with_text(start(longer), anew), Lines{anew + "the data, data.sequence_length"});
  EXPECT_EQ(values(19), 2u);
}

// Tokens that were seen, whatever the lengths of their sequences.
TEST_F(GoingOn, TokensAreThoseThatWereSeen) {
  start({"train.steps=3"});
  start({"train.steps=5", "data.sequence_length=16", "data.allow_dataset_change=true"});
  start({"train.steps=6", "data.sequence_length=16", "data.allow_dataset_change=true",
         "train.global_batch=8", "data.num_streams=4"});
  std::vector<int64_t> tokens;
  for (const nlohmann::json& row : steps()) tokens.push_back(row.at("tokens"));
  EXPECT_EQ(tokens, (std::vector<int64_t>{128, 256, 384, 448, 512, 640}));
  EXPECT_EQ(trainer_state(6).at("tokens"), 640);
  EXPECT_EQ(trainer_state(6).at("samples"), 28);
}

TEST_F(GoingOn, ARateThatJumpsIsToldWithBothValues) {
  const Lines run = {"optim.schedule=linear", "optim.warmup_steps=0", "optim.lr=1e-2",
                     "optim.lr_min=1e-3"};
  const auto with = [&](const char* steps) {
    Lines all = run;
    all.push_back(steps);
    return all;
  };
  EXPECT_EQ(with_text(start(with("train.steps=10")), "the rate of step"), Lines{});
  EXPECT_EQ(with_text(start(with("train.steps=20")), "the rate of step"),
            Lines{"the rate of step 11 is 0.00526, that of step 10 was 0.001"});
  const std::vector<nlohmann::json> rows = steps();
  EXPECT_EQ(rows[0].at("lr"), 1e-2);
  EXPECT_DOUBLE_EQ(rows[9].at("lr").get<double>(), 1e-3);
  EXPECT_DOUBLE_EQ(rows[10].at("lr").get<double>(), 1e-2 - 9e-3 * 10 / 19);
  EXPECT_DOUBLE_EQ(rows[19].at("lr").get<double>(), 1e-3);
}

TEST_F(GoingOn, AWarmUpLongerThanTheRunIsWarnedOf) {
  EXPECT_EQ(with_text(start({"train.steps=2"}), "warning: optim.warmup_steps is 5 but train.steps")
                .size(),
            1u);
  EXPECT_EQ(with_text(start({"train.steps=6"}), "warning: "), Lines{});
}

// ---- precision

TEST_F(GoingOn, TheStateIsConvertedToAnotherPrecision) {
  const auto go_on = [&](int64_t steps, const char* precision, int num_ranks) {
    return with_text(
        start({fmt::format("train.steps={}", steps), std::string("train.precision=") + precision},
              num_ranks),
        "was converted to");
  };
  EXPECT_EQ(go_on(2, "fp32", 1), Lines{});
  int64_t before = 2;
  for (const auto& [precision, num_ranks, told] :
       {std::tuple{"fp64", 1, "train.precision fp64: "},
        {"fp64", 2, ""},
        {"fp32", 2, "train.precision fp32, which rounds it: "},
        {"bf16", 1, ""},
        {"fp64", 2, "train.precision fp64: "},
        {"bf16", 1, "train.precision bf16, which rounds it: "}}) {
    const Lines lines = go_on(before + 1, precision, num_ranks);
    ASSERT_EQ(lines.size(), *told == 0 ? 0u : 1u) << precision;
    for (const std::string& line : lines) EXPECT_NE(line.find(told), line.npos) << line;
    ++before;
    EXPECT_EQ(trainer_state(before).at("step"), before);
  }
}

// No checkpoint holds the stream, so nothing is converted.
TEST_F(GoingOn, AnotherStreamTypeTakesEffectFromThereOn) {
  const auto go_on = [&](int64_t steps, const char* stream) {
    return start({fmt::format("train.steps={}", steps), "train.precision=bf16",
                  std::string("train.stream=") + stream},
                 1);
  };
  go_on(2, "fp32");
  for (const auto& [steps, stream] : {std::pair{3, "bf16"}, {4, "fp32"}}) {
    const Lines lines = go_on(steps, stream);
    EXPECT_EQ(with_text(lines, "train.stream was").size(), 1u) << stream;
    EXPECT_EQ(with_text(lines, "was converted to"), Lines{}) << stream;
    EXPECT_EQ(trainer_state(steps).at("step"), steps);
  }
}

// fp64 holds every fp32 value, and a float comes back from it as it was.
TEST_F(GoingOn, ConvertingThereAndBackLosesNothing) {
  start({"train.steps=3", "optim.schedule=constant", "checkpoint.keep=9"});
  const Lines still = {"optim.lr=0",        "optim.lr_min=0",           "optim.weight_decay=0",
                       "checkpoint.keep=9", "health.max_loss_rise=1e9", "optim.schedule=constant"};
  const auto weights = [&](int64_t number) {
    std::map<std::string, std::vector<double>> values;
    const models::StoredTensors step(checkpoint::StepReader(*files_, this->step(number)));
    for (const models::StoredTensor& tensor : step.tensors()) {
      if (tensor.component != checkpoint::Component::kModel || tensor.logical.role == Role::kBuffer)
        continue;
      std::vector<double>& out = values[tensor.logical.name];
      out.resize(size_t(tensor.logical.global_shape.numel()));
      const Tensor to{reinterpret_cast<std::byte*>(out.data()), DType::kF64, Device::kCpu,
                      tensor.logical.global_shape};
      const Piece piece{tensor.logical, Box::whole(tensor.logical.global_shape), to};
      step.read(std::span(&piece, 1));
    }
    return values;
  };
  int64_t steps = 3;
  for (const char* precision : {"fp64", "fp32"}) {
    Lines all = still;
    all.push_back(fmt::format("train.steps={}", ++steps));
    all.push_back(std::string("train.precision=") + precision);
    EXPECT_EQ(with_text(start(all), "was converted to").size(), 1u);
    EXPECT_EQ(weights(steps), weights(3)) << precision << ": a rate of 0 changes no weight";
  }
}

// ---- data

TEST_F(GoingOn, DatasetsThatStayGoOnAndBothAreTold) {
  const auto data = [&](const char* of_text, const char* of_other) {
    return fmt::format("data.train={}:{},{}:{}", text(), of_text, other(), of_other);
  };
  start({"train.steps=10", data("0.5", "0.5"), "data.validation_fraction=0"});
  const std::string change = "data.allow_dataset_change=true";
  Lines said =
      start({"train.steps=14", data("0.25", "0.75"), "data.validation_fraction=0", change,
             "health.window=2", "health.max_norm_ratio=1e-9", "health.max_skips_per_1000=1000"});
  EXPECT_EQ(with_text(said, " goes on after the 20 samples that were taken of it").size(), 2u);
  EXPECT_EQ(with_text(said, "starts at its beginning"), Lines{});
  // Steps 13 and 14 are skipped: samples 48 to 51 and 52 to 55.
  EXPECT_EQ(with_text(said, "step 13 is skipped: ").size(), 1u);
  for (const nlohmann::json& row : rows_of(*files_, root_)) {
    if (row.value("event", "") != "skip") continue;
    const int64_t first = 4 * (row.at("step").get<int64_t>() - 1);
    EXPECT_EQ(row.at("samples"), (std::vector<int64_t>{first, first + 1, first + 2, first + 3}));
  }
  // 4 and 12 of the 16 samples of the second blend.
  said = start({"train.steps=15", "data.train=" + text(), "data.validation_fraction=0", change});
  EXPECT_EQ(with_text(said, " goes on after the 24 samples that were taken of it").size(), 1u);
  said = start({"train.steps=16", "data.train=" + other(), "data.validation_fraction=0", change});
  EXPECT_EQ(with_text(said, "/other starts at its beginning").size(), 1u);
  EXPECT_EQ(with_text(start({"train.steps=17", "data.train=" + other(),
                             "data.validation_fraction=0", change}),
                      "starts at its beginning"),
            Lines{});
}

TEST_F(GoingOn, EpochsAreToldOnceWhenTheDataBeginAgain) {
  const auto epochs = [&] {
    std::vector<std::tuple<int64_t, std::string, int64_t>> found;
    for (const nlohmann::json& row : rows_of(*files_, root_))
      if (row.value("event", "") == "epoch")
        found.emplace_back(row.at("step"), row.at("dataset"), row.at("epoch"));
    return found;
  };
  // 32 samples of 10 tokens: 8 steps of 4 an epoch.
  std::vector<std::vector<int32_t>> small(1, std::vector<int32_t>(321, 7));
  data::write_documents(*files_, root_ / "small", small, 256);
  const Lines data = {"data.sequence_length=10", "data.validation_fraction=0",
                      "data.train=" + (root_ / "small").string()};
  const auto with = [&](const char* steps) {
    Lines all = data;
    all.push_back(steps);
    return all;
  };
  EXPECT_EQ(with_text(start(with("train.steps=8")), "epoch"), Lines{});
  EXPECT_EQ(with_text(start(with("train.steps=20")), "epoch"),
            Lines{"step 9: epoch 2 of " + (root_ / "small").string() +
                  " begins: its 32 samples begin again, every 8.0 steps; later epochs of it are "
                  "not told"});
  EXPECT_EQ(with_text(start(with("train.steps=30")), "epoch"), Lines{});
  EXPECT_EQ(epochs().size(), 1u);
}

TEST_F(GoingOn, EveryEpochOfALargeDatasetIsTold) {
  std::vector<std::vector<int32_t>> large(1, std::vector<int32_t>(101, 7));
  data::write_documents(*files_, root_ / "large", large, 256);
  const std::string name = root_ / "large";
  // 100 samples of one token, one a step, beside a dataset that takes the other half.
  const Lines lines =
      with_text(start({"data.sequence_length=1", "data.validation_fraction=0",
                       "train.micro_batch=1", "train.global_batch=2", "data.num_streams=1",
                       "train.steps=205", fmt::format("data.train={}:1,{}:1", name, text())}),
                "epoch");
  EXPECT_EQ(lines,
            (Lines{"step 101: epoch 2 of " + name + " begins: its 100 samples begin again",
                   "step 201: epoch 3 of " + name + " begins: its 100 samples begin again"}));
}

// ---- steps without targets

class NoTargets : public GoingOn, public testing::WithParamInterface<std::vector<std::string>> {};

// Documents of one token have none where their ends are masked.
TEST_P(NoTargets, AreNullAndNotApplied) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 900; ++d)
    documents.push_back(d % 300 < 32 ? std::vector<int32_t>(33, 5 + d % 9) : std::vector{1});
  data::write_documents(*files_, root_ / "ends", documents, 256);
  Lines overrides = {"data.train=" + (root_ / "ends").string(),
                     "data.validation_fraction=0",
                     "data.mask_document_end=true",
                     "train.micro_batch=1",
                     "train.global_batch=2",
                     "data.num_streams=2",
                     "train.steps=24",
                     "checkpoint.every=4",
                     "checkpoint.keep=100",
                     "moe.balance.scope=global_batch",
                     "train.log_every=1"};
  for (const std::string& more : GetParam()) overrides.push_back(more);
  const Lines said = start(overrides, GetParam().empty() ? 1 : 2);
  std::vector<int64_t> without, applied;
  for (const nlohmann::json& row : steps()) {
    const bool null = row.at("loss").is_null();
    EXPECT_EQ(row.at("applied"), !null) << row;
    EXPECT_EQ(row.at("skipped"), 0) << row;
    (null ? without : applied).push_back(row.at("step"));
  }
  ASSERT_GE(without.size(), 2u);
  ASSERT_GE(applied.size(), 5u);
  EXPECT_EQ(with_text(said, "none of its tokens has a target").size(), 1u);
  EXPECT_EQ(with_text(said, fmt::format("warning: step {} is skipped: none of its tokens has a "
                                        "target; its samples are {} to {}; more ",
                                        without[0], 2 * without[0] - 2, 2 * without[0] - 1))
                .size(),
            1u);
  EXPECT_EQ(with_text(said, "loss none").size(), without.size());
  const nlohmann::json end = trainer_state(24);
  EXPECT_EQ(end.at("optimizer_steps"), int64_t(applied.size()));
  EXPECT_EQ(end.at("balancer_updates"), int64_t(applied.size()));
  EXPECT_EQ(end.at("losses_f64_bits").size(), applied.size());
  without.erase(std::remove(without.begin(), without.end(), 24), without.end());  // the last save
  for (const int64_t number : without) EXPECT_FALSE(files_->stat(step(number))) << number;
}

INSTANTIATE_TEST_SUITE_P(Layouts, NoTargets,
                         testing::Values(Lines{}, Lines{"parallel.dp=2"}, Lines{"parallel.cp=2"},
                                         Lines{"parallel.pp=2"}, Lines{"parallel.tp=2"},
                                         Lines{"parallel.tp=2", "parallel.sequence_parallel=true"},
                                         Lines{"parallel.tsp=2"},
                                         Lines{"parallel.dp=2", "parallel.ep=2"}),
                         [](const auto& info) { return "layout_" + std::to_string(info.index); });

}  // namespace
}  // namespace ashlar::train
