#include "ashlar/train/changes.h"

#include <gtest/gtest.h>

#include "ashlar/spec/recipe.h"

namespace ashlar::train {
namespace {

Recipe with(std::vector<std::string> overrides) {
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// Step 20 of 30 is done; the warm-up ended with step 5.
TEST(Changes, LossesAreComparedOnlyWithThoseOfTheSameTask) {
  const struct {
    std::vector<std::string> overrides;
    std::vector<std::string> reasons;
  } cases[] = {
      {{}, {}},
      {{"train.global_batch=8", "data.num_streams=4"}, {"train.global_batch"}},
      {{"data.sequence_length=16"}, {"data.sequence_length"}},
      {{"data.train=other"}, {"data.train"}},
      {{"data.train=text:0.5,other:0.5"}, {"data.train"}},
      {{"data.packing=best_fit"}, {"data.packing"}},
      {{"data.document_reset=false"}, {"data.document_reset"}},
      {{"data.mask_document_end=true"}, {"data.mask_document_end"}},
      {{"data.validation_fraction=0.1"}, {"data.validation_fraction"}},
      {{"train.precision=fp64"}, {"train.precision"}},
      {{"train.precision=bf16", "train.stream=bf16"}, {"train.precision", "train.stream"}},
      {{"model.rope_theta=5e4"}, {"model.rope_theta"}},
      {{"moe.skip_output=identity"}, {"moe.skip_output"}},
      {{"optim.lr=1e-3"}, {"the learning rate"}},
      {{"optim.schedule=linear"}, {"the learning rate"}},
      {{"train.steps=40"}, {"the learning rate"}},
      {{"optim.lr=1e-3", "train.global_batch=8"}, {"train.global_batch", "the learning rate"}},
      // Changes that leave the loss as it is, or do not change it yet.
      {{"train.micro_batch=1", "train.log_every=1", "train.threads=2", "checkpoint.every=5",
        "health.window=64", "data.verify=off", "run.name=x", "optim.beta2=0.9", "parallel.zero=2",
        "train.recompute=true"},
       {}},
  };
  for (const auto& c : cases)
    EXPECT_EQ(incomparable(with({}), with(c.overrides), 20), c.reasons)
        << (c.overrides.empty() ? "" : c.overrides[0]);
  EXPECT_EQ(incomparable(with({}), with({"train.steps=40"}), 3), std::vector<std::string>{})
      << "in the warm-up";
  EXPECT_EQ(incomparable(with({"optim.schedule=constant"}),
                         with({"optim.schedule=constant", "train.steps=40"}), 20),
            std::vector<std::string>{});
}

TEST(Changes, BothRatesAreToldWhereTheyJump) {
  const std::vector<std::string> run = {"train.steps=10", "optim.warmup_steps=0", "optim.lr=1e-2",
                                        "optim.lr_min=1e-3", "optim.schedule=linear"};
  const auto longer = [&](const std::string& override_text) {
    std::vector<std::string> all = run;
    all.push_back(override_text);
    return with(all);
  };
  // Linear from 1e-2 to 1e-3 over 20 steps: after ten of them 1e-2 - 9e-3 * 10/19.
  EXPECT_EQ(rate_change(with(run), longer("train.steps=20"), 10),
            "the rate of step 11 is 0.00526, that of step 10 was 0.001");
  EXPECT_EQ(rate_change(with(run), longer("optim.lr=2e-2"), 5),
            "the rate of step 6 is 0.00944, that of step 5 was 0.006");
  EXPECT_EQ(rate_change(with(run), longer("optim.lr_min=0"), 9),
            "the rate of step 10 is 0, that of step 9 was 0.002");
  EXPECT_EQ(rate_change(with(run), with(run), 5), "");
  EXPECT_EQ(rate_change(with(run), longer("train.log_every=3"), 5), "");
}

TEST(Changes, AWarmUpThatTheRunDoesNotReachTheEndOf) {
  EXPECT_EQ(warmup_problem(with({"train.steps=5", "optim.warmup_steps=100"})),
            "optim.warmup_steps is 100 but train.steps is 5: the run ends at 5 % of optim.lr, "
            "without any decay; choose fewer steps of warm-up");
  for (const char* warmup : {"0", "4", "5"})
    EXPECT_EQ(warmup_problem(with({"train.steps=5", std::string("optim.warmup_steps=") + warmup})),
              "");
}

}  // namespace
}  // namespace ashlar::train
