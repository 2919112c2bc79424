// The bytes of merges, norms and embedding by which estimates price them, against those that a dry
// run counts, with both types of the residual stream.
#include <gtest/gtest.h>

#include "ashlar/sizing/block_time.h"
#include "ashlar/train/plan.h"
#include "tests/plan/small_machine.h"

namespace ashlar::plan {
namespace {

struct MovedBytes {
  double merges_forward = 0, merges_backward = 0, input = 0, input_backward = 0;
};

// By the formulas, on a machine that moves a byte in a second and computes in no time.
MovedBytes by_formulas(const Recipe& recipe) {
  machine::Profile profile;
  const auto set = [&](const char* key, double value, const char* unit) {
    profile.set(key, {value, unit, machine::Origin::kAssumed, "a test", "", 0});
  };
  set("compute.achievable_bf16", 1e15, "TFLOP/s");
  set("compute.achievable_fp32", 1e15, "TFLOP/s");
  set("memory.triad", 1e-9, "GB/s");
  const sizing::MachineRates rates(profile, {}, 1, true);
  const sizing::StepShape shape = sizing::step_shape(recipe, resolve_parallel(recipe, 1), true);
  sizing::RankPass pass;
  pass.rows = double(shape.micro_batch);
  pass.sequence = double(shape.sequence_length);
  pass.tokens = pass.merged = pass.rows * pass.sequence;
  pass.stream_bytes = shape.stream_bytes();
  const double H = double(shape.model.hidden_size);
  MovedBytes bytes;
  for (const BlockSpec& block : shape.model.blocks) {
    const sizing::BlockTime time = sizing::block_time(block, {}, H, pass, true, rates);
    bytes.merges_forward += time.merges_forward_s;
    bytes.merges_backward += time.merges_backward_s;
  }
  const sizing::EndTime ends = sizing::end_time(shape.model, {}, pass, true, rates);
  bytes.input = ends.input_s;
  bytes.input_backward = ends.input_backward_s;
  return bytes;
}

MovedBytes by_dry_run(const Recipe& recipe) {
  const train::KernelCosts costs = train::plan_run(recipe, DType::kBF16).costs;
  const auto bytes = [&](const char* op) { return double(costs.at(op).bytes); };
  return {bytes("merge_norm_forward"), bytes("merge_norm_backward"),
          bytes("embedding_forward") + bytes("rms_norm_forward"),
          bytes("embedding_backward") + bytes("rms_norm_backward")};
}

TEST(StreamBytes, OfEstimatesAreThoseOfADryRun) {
  const std::string llama = ASHLAR_FIXTURES "/../../recipes/llama-nano.toml";
  for (const std::string& file : {std::string(ASHLAR_FIXTURES "/recipes/tiny.toml"), llama})
    for (const char* stream : {"fp32", "bf16"}) {
      SCOPED_TRACE(file + " " + stream);
      const std::vector<std::string> keys = {
          "train.precision=bf16",     std::string("train.stream=") + stream,
          "train.micro_batch=4",      "train.global_batch=4",
          "data.sequence_length=256", "optim.matrices=adamw",
          "train.threads=1",          "model.num_hidden_layers=8"};
      const Recipe recipe = load_recipe(file, keys);
      const MovedBytes formulas = by_formulas(recipe), counted = by_dry_run(recipe);
      // Weights of norms and merges and the tokens' ids and statistics are left out; the last merge
      // of the model has no gradient along the stream.
      constexpr double kSmall = 0.03;
      EXPECT_NEAR(formulas.merges_forward / counted.merges_forward, 1, kSmall);
      EXPECT_NEAR(formulas.merges_backward / counted.merges_backward, 1, kSmall);
      EXPECT_NEAR(formulas.input / counted.input, 1, kSmall);
      EXPECT_NEAR(formulas.input_backward / counted.input_backward, 1, kSmall);
    }
}

}  // namespace
}  // namespace ashlar::plan
