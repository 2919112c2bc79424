// Steps that the health check skips: nothing in the state changes, saves wait for a step that is
// applied, and the end says what is left.
#include <gtest/gtest.h>

#include <algorithm>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/models/diff.h"
#include "ashlar/train/start.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

std::string step_path(const TemporaryDirectory& root, int64_t step) {
  return root / fmt::format("run/checkpoints/step-{:012}", step);
}

std::vector<int64_t> saved_steps(FileSystem& files, const TemporaryDirectory& root) {
  std::vector<int64_t> steps;
  for (const std::string& name : files.list(root / "run/checkpoints"))
    if (name.starts_with("step-")) steps.push_back(std::stoll(name.substr(5)));
  std::sort(steps.begin(), steps.end());
  return steps;
}

nlohmann::json trainer_state(FileSystem& files, const TemporaryDirectory& root, int64_t step) {
  return nlohmann::json::parse(read_text(files, step_path(root, step) + "/extra/trainer.json"));
}

void expect_same_state(FileSystem& files, const TemporaryDirectory& root, int64_t a, int64_t b) {
  const models::StoredTensors before(checkpoint::StepReader(files, step_path(root, a))),
      after(checkpoint::StepReader(files, step_path(root, b)));
  for (const auto component : {checkpoint::Component::kModel, checkpoint::Component::kOptim}) {
    const models::Diff diff = models::diff(before, after, {.values = true, .component = component});
    EXPECT_GT(diff.tensors.size(), 10u);
    for (const models::TensorDiff& tensor : diff.tensors)
      EXPECT_TRUE(tensor.equal()) << tensor.name << " of steps " << a << " and " << b;
  }
  const nlohmann::json was = trainer_state(files, root, a), is = trainer_state(files, root, b);
  for (const char* key : {"optimizer_steps", "balancer_updates"})
    EXPECT_EQ(was.at(key), is.at(key)) << key;
}

struct SkipCase {
  const char* name;
  int num_ranks;
  std::vector<std::string> overrides;
};

void PrintTo(const SkipCase& c, std::ostream* out) {
  *out << c.name;
}

class SkippedSteps : public testing::TestWithParam<SkipCase> {
 protected:
  void train(std::vector<std::string> overrides, int64_t steps) {
    for (const std::string& more : GetParam().overrides) overrides.push_back(more);
    for (const char* more :
         {"train.eval_every=0", "checkpoint.every=1", "checkpoint.keep=50", "moe.balance.lr=0.1",
          "health.max_consecutive_skips=500", "health.max_skips_per_1000=1000",
          "train.micro_batch=1", "train.precision=fp32"})
      overrides.push_back(more);
    overrides.push_back(fmt::format("train.steps={}", steps));
    Start start;
    start.num_ranks = GetParam().num_ranks;
    start_run(tiny_run(*files_, root_, overrides), *files_, log_, start);
  }
  const std::unique_ptr<FileSystem> files_ = posix_files();
  const TemporaryDirectory root_;
  Log log_{[](std::string_view) {}};
};

TEST_P(SkippedSteps, FiniteOnesChangeNothing) {
  train({"health.window=2", "health.max_norm_ratio=1e-6"}, 6);
  EXPECT_EQ(saved_steps(*files_, root_), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(trainer_state(*files_, root_, 6).at("skipped"), 4);
  expect_same_state(*files_, root_, 2, 6);
}

TEST_P(SkippedSteps, OnesThatAreNotFiniteChangeNothing) {
  train({"optim.lr=1e30", "optim.lr_min=1e29", "optim.warmup_steps=0"}, 4);
  EXPECT_EQ(saved_steps(*files_, root_), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(trainer_state(*files_, root_, 4).at("non_finite"), 3);
  expect_same_state(*files_, root_, 1, 4);
}

// Sample 4 x 2 is in step 3.  Once the list is in a checkpoint, a later start needs no file.
TEST_P(SkippedSteps, PassedOnesChangeNothingOnAnyLayout) {
  const std::string list = root_ / "run/skips.jsonl";
  files_->make_directories(root_ / "run");
  write_text(*files_, list, "{\"step\":3,\"samples\":[8,21],\"reason\":\"a test\"}\n");
  train({"train.global_batch=4"}, 3);
  EXPECT_EQ(saved_steps(*files_, root_), (std::vector<int64_t>{1, 2, 3}));
  expect_same_state(*files_, root_, 2, 3);
  files_->remove(list);
  train({"train.global_batch=4"}, 7);
  EXPECT_EQ(trainer_state(*files_, root_, 7).at("harmful_samples"), (std::vector<int>{8, 21}));
  std::vector<int64_t> passed, samples;
  for (const nlohmann::json& row : rows_of(*files_, root_)) {
    if (row.value("event", "") == "pass") passed.push_back(row.at("step"));
    if (row.contains("event")) continue;
    const bool listed = row.at("step") == 3 || row.at("step") == 6;
    EXPECT_EQ(row.at("applied"), !listed) << row;
    EXPECT_EQ(row.at("loss").is_null(), listed) << row;
    samples.push_back(row.at("samples"));
  }
  EXPECT_EQ(passed, (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(samples, (std::vector<int64_t>{4, 8, 12, 16, 20, 24, 28})) << "the data counts as used";
}

const std::string kMicro = "moe.balance.scope=micro_batch";

INSTANTIATE_TEST_SUITE_P(
    All, SkippedSteps,
    testing::ValuesIn(std::vector<SkipCase>{
        {"one_rank", 1, {}},
        {"one_rank_micro_batch", 1, {kMicro}},
        {"all_classes_micro_batch", 1, {kMicro, "moe.balance.target=all_classes"}},
        {"dp2_micro_batch", 2, {kMicro}},
        {"dp2_zero3_micro_batch", 2, {kMicro, "parallel.zero=3"}},
        {"tp2_micro_batch", 2, {kMicro, "parallel.tp=2"}},
        {"ep2_micro_batch", 2, {kMicro, "parallel.ep=2"}},
        {"pp2", 2, {"parallel.pp=2"}},
        {"linear_router_micro_batch",
         1,
         {kMicro, "model.layer_types=attention+moe", "model.router=linear",
          "model.router_expert_bias=true"}}}),
    [](const auto& info) { return std::string(info.param.name); });

// Memory of a step is planned: keeping the biases takes none later.
TEST(SkippedStep, AllocatesNothing) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  Log log([](std::string_view) {});
  start_run(tiny_run(*files, root,
                     {kMicro, "train.steps=8", "train.eval_every=0", "checkpoint.every=-1",
                      "health.window=4", "health.max_norm_ratio=1e-6"}),
            *files, log);
  std::vector<int64_t> allocations;
  int64_t skipped = 0;
  for (const nlohmann::json& row : rows_of(*files, root)) {
    if (row.contains("event")) continue;
    allocations.push_back(row.at("allocations"));
    skipped = row.at("skipped");
  }
  EXPECT_EQ(skipped, 4);
  ASSERT_EQ(allocations.size(), 8u);
  for (const int64_t a : allocations) EXPECT_EQ(a, allocations[0]);
}

// ---- what is said

std::string said_by(std::vector<std::string> overrides, const TemporaryDirectory& root,
                    ErrorKind* kind = nullptr) {
  const auto files = posix_files();
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  try {
    start_run(tiny_run(*files, root, std::move(overrides)), *files, log);
  } catch (const Error& error) {
    if (kind == nullptr) throw;
    *kind = error.kind();
    said += error.what();
  }
  return said;
}

TEST(SkippedStep, TheEndSaysWhichCheckpointIsLeft) {
  for (const auto& [every, left] : {std::pair{"0", "; there is no checkpoint"},
                                    {"-1", "; there is no checkpoint"},
                                    {"2", "; the last good checkpoint, step 2, is untouched"}}) {
    const TemporaryDirectory root;
    ErrorKind kind = ErrorKind::kData;
    const std::string said =
        said_by({"health.window=3", "health.max_norm_ratio=1e-6", "health.max_skips_per_1000=4",
                 "train.eval_every=0", std::string("checkpoint.every=") + every},
                root, &kind);
    EXPECT_EQ(kind, ErrorKind::kNumeric);
    EXPECT_TRUE(said.ends_with(
        std::string("4 of the last 1000 steps were skipped (health.max_skips_per_1000): lower "
                    "optim.lr, look at the samples named above, or raise the limits that decided") +
        left))
        << said;
    EXPECT_NE(said.find("is more than 1e-06 (health.max_norm_ratio) times the largest of the last "
                        "3 steps, "),
              said.npos)
        << said;
  }
}

TEST(SkippedStep, ItsSamplesAreNamedFromTheFirstToTheLast) {
  for (const auto& [batch, named] : {std::pair{"1", "; its sample is 3\n"},
                                     {"2", "; its samples are 6 to 7\n"},
                                     {"4", "; its samples are 12 to 15\n"}}) {
    const TemporaryDirectory root;
    const std::string said =
        said_by({"health.window=3", "health.max_norm_ratio=1e-6", "health.max_skips_per_1000=1000",
                 "train.steps=4", "train.eval_every=0", "train.micro_batch=1", "data.num_streams=1",
                 std::string("train.global_batch=") + batch},
                root);
    EXPECT_NE(said.find(named), said.npos) << said;
  }
}

// Step 4 is skipped, so its save is that of step 5.  (A first window of losses that can only fall,
// and a rise of 0, skip whatever rises.)
TEST(SkippedStep, ASaveThatIsDueWaitsForAStepThatIsApplied) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  said_by({"health.window=2", "health.max_loss_rise=0", "train.steps=24", "train.eval_every=0",
           "checkpoint.every=1", "checkpoint.keep=50", "health.max_skips_per_1000=1000"},
          root);
  std::vector<int64_t> applied;
  for (const nlohmann::json& row : rows_of(*files, root))
    if (!row.contains("event") && (row.at("applied") || row.at("step") == 24))
      applied.push_back(row.at("step"));
  EXPECT_EQ(saved_steps(*files, root), applied);
  EXPECT_LT(applied.size(), 24u);
  EXPECT_GT(applied.size(), 3u);
}

}  // namespace
}  // namespace ashlar::train
