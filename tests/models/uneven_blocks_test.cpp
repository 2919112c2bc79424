// Models whose blocks differ in what a recipe states once for all: they are saved as steps, and
// exported where a Hugging Face family has them.
#include <gtest/gtest.h>

#include "ashlar/models/step_model.h"
#include "ashlar/models/write_step.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

// Another part of a head rotates in the sliding block.
ModelSpec two_rotary_factors() {
  ModelSpec model = model_of(odd_spec());
  std::get<CcaSpec>(model.blocks[1].mixer).rotary_factor = 1.0;
  return model;
}

// Another number of heads in block 1, of experts and their width in block 2.
ModelSpec no_two_alike() {
  ModelSpec model = model_of(odd_spec());
  auto& mixer = std::get<CcaSpec>(model.blocks[1].mixer);
  mixer.num_query_heads = 6, mixer.num_key_heads = 3;
  auto& moe = std::get<MoeSpec>(model.blocks[2].feed_forward);
  moe.num_experts = 5, moe.width = 9;
  return model;
}

class UnevenBlocks : public HfDirectoryTest {
 protected:
  // Saves a step of the model with random values; returns it as it is found there.
  ModelSource saved(const ModelSpec& spec, const Values& values) {
    write_model_step(*files, root / "step", {.spec = spec}, TensorsInMemory(values.pieces), 1,
                     log_);
    return find_model(*files, root / "step", log_);
  }
  Log log_ = checkpoint::quiet_log();
};

TEST_F(UnevenBlocks, GoThroughAStepToAnExportAndBack) {
  const ModelSpec spec = two_rotary_factors();
  const Values values = random_values(spec, DType::kF32);
  const ModelSource step = saved(spec, values);
  EXPECT_EQ(step.spec, spec);
  const StoredTensors tensors(*files, step);
  write_hf_model(*files, root / "hf", step.spec, tensors, kF32Native);
  const HfModel again = open("hf");
  EXPECT_EQ(again.spec(), spec);
  expect_equal(values, read_all(again, DType::kF32));
}

TEST_F(UnevenBlocks, AreSavedWhereNoFamilyHasThem) {
  const ModelSpec spec = no_two_alike();
  const Values values = random_values(spec, DType::kF32);
  const ModelSource step = saved(spec, values);
  EXPECT_EQ(step.spec, spec);
  const StoredTensors tensors(*files, step);
  for (const Piece& piece : values.pieces) {
    Values read;
    read.add(piece.logical, Box::whole(piece.logical.global_shape), DType::kF32);
    tensors.read(read.pieces);
    EXPECT_EQ(read.memory[0], values.of(piece.logical.name)) << piece.logical.name;
  }
  EXPECT_EQ(
      message_of(ErrorKind::kConfig,
                 [&] { write_hf_model(*files, root / "hf", step.spec, tensors, kF32Native); }),
      "no Hugging Face architecture has block 2 of this model, hybrid, which differs from "
      "earlier blocks of its kind; expected blocks of a kind to be alike: it stays in "
      "checkpoints of Ashlar");
  EXPECT_FALSE(files->stat(root / "hf"));
}

TEST_F(UnevenBlocks, TheLegacyLayoutStatesOneRotaryFactor) {
  EXPECT_EQ(message_of(ErrorKind::kConfig,
                       [] { to_hf_config(two_rotary_factors(), DType::kF32, HfLayout::kLegacy); }),
            "partial_rotary_factor is 1 in blocks with a window but 0.5 in the others; the legacy "
            "layout states one for all: export the native one");
}

TEST(UnevenModel, WhatNoModelMayHaveIsNamedByItsKey) {
  const auto refusal = [](auto change) {
    ModelSpec model = no_two_alike();
    change(model);
    return testing_support::message_of(ErrorKind::kConfig, [&] { validate(model); });
  };
  validate(no_two_alike());
  EXPECT_TRUE(refusal([](ModelSpec& model) {
                std::get<CcaSpec>(model.blocks[1].mixer).num_query_heads = 7;
              }).starts_with("num_attention_heads is 7 but num_key_value_heads is 3"));
  EXPECT_EQ(refusal([](ModelSpec& model) {
              auto& moe = std::get<MoeSpec>(model.blocks[1].feed_forward);
              std::get<MlpRouterSpec>(moe.router).width = 4;
            }),
            "router_hidden_size is 4 in block 1 but 6 before it; expected one for all blocks, for "
            "a router's state goes on to the next");
  EXPECT_EQ(refusal([](ModelSpec& model) { model.blocks[2].residual = Residual::kPlain; }),
            "residual is plain in block 2 but scaled in block 0; expected one for all blocks");
  EXPECT_TRUE(testing_support::message_of(ErrorKind::kConfig, [] {
                keys_of(no_two_alike(), "run/step");
              }).starts_with("run/step: block 1 differs from the others in what a recipe states"));
}

}  // namespace
}  // namespace ashlar::models
