// The rules of [parallel], with and without a number of ranks.
#include <gtest/gtest.h>

#include <string>

#include "ashlar/core/error.h"
#include "ashlar/spec/recipe.h"

namespace ashlar {
namespace {

Recipe load_tiny(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(),
                   {"train.micro_batch=2", "train.global_batch=12", "data.num_streams=12"});
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// The error of loading a recipe with these overrides; "" if it is accepted.
std::string judged_tiny(const std::vector<std::string>& overrides) {
  try {
    load_tiny(overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    const std::string text = error.what();
    return text.substr(text.find("parallel."));
  }
  return "";
}

std::string judged_on(int64_t num_ranks, const std::vector<std::string>& overrides) {
  try {
    resolve_parallel(load_tiny(overrides), num_ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

// tiny: 4 heads, 2 key heads.
TEST(ParallelRules, HeadsAndWidthAreCutEvenly) {
  for (const char* tp : {"1", "2", "4"})
    EXPECT_EQ(judged_tiny({std::string("parallel.tp=") + tp}), "");
  EXPECT_EQ(judged_tiny({"parallel.tp=3"}),
            "parallel.tp is 3 but model.num_attention_heads is 4 and model.num_key_value_heads 2: "
            "each rank takes equally many whole heads; choose 2 or 4");
  EXPECT_EQ(judged_tiny({"parallel.tp=8"}),
            "parallel.tp is 8 but model.num_attention_heads is 4 and model.num_key_value_heads 2: "
            "each rank takes equally many whole heads; choose 4");
  EXPECT_EQ(judged_tiny({"parallel.tp=4", "model.moe_intermediate_size=30"}),
            "parallel.tp is 4 but model.moe_intermediate_size is 30: each rank takes an equal part "
            "of it; choose 2");
  EXPECT_EQ(judged_tiny({"parallel.tp=4", "model.shared_expert_intermediate_size=6"}),
            "parallel.tp is 4 but model.shared_expert_intermediate_size is 6: each rank takes an "
            "equal part of it; choose 2");
}

TEST(ParallelRules, SequencesAreCutIntoChunksOfTwoTokensAtLeast) {
  const std::string length = "data.sequence_length=12";
  EXPECT_EQ(judged_tiny({length, "parallel.cp=3"}), "");
  EXPECT_EQ(judged_tiny({length, "parallel.cp=6", "parallel.cp_layout=contiguous"}), "");
  EXPECT_EQ(judged_tiny({length, "parallel.cp=4"}),
            "parallel.cp is 4 but data.sequence_length is 12: zigzag gives a rank two equal chunks "
            "of at least 2 tokens; choose 3");
  EXPECT_EQ(judged_tiny({length, "parallel.cp=5", "parallel.cp_layout=contiguous"}),
            "parallel.cp is 5 but data.sequence_length is 12: contiguous gives a rank an equal "
            "chunk of at least 2 tokens; choose 4 or 6");
}

TEST(ParallelRules, AttentionIsCutByWholeHeads) {
  const std::string exchange = "parallel.cp_exchange=all_to_all";
  const std::vector<std::string> heads{exchange, "model.num_attention_heads=8",
                                       "model.num_key_value_heads=2", "data.sequence_length=48",
                                       "train.micro_batch=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), heads.begin(), heads.end());
    return judged_tiny(more);
  };
  for (const char* cp : {"parallel.cp=2", "parallel.cp=4", "parallel.cp=8"})
    EXPECT_EQ(with({cp}), "");
  EXPECT_EQ(with({"parallel.cp=4", "parallel.tp=2"}), "");
  EXPECT_EQ(with({"parallel.cp=3"}),
            "parallel.cp_exchange is all_to_all with parallel.cp 3, but a rank has 8 query heads "
            "and 2 key heads (parallel.tp 1): each takes equally many whole heads; choose "
            "parallel.cp 2 or 4, or cp_exchange ring");
  EXPECT_EQ(with({"parallel.cp=8", "parallel.tp=2", "data.sequence_length=64"}),
            "parallel.cp_exchange is all_to_all with parallel.cp 8, but a rank has 4 query heads "
            "and 1 key heads (parallel.tp 2): each takes equally many whole heads; choose "
            "parallel.cp 4, or cp_exchange ring");
}

TEST(ParallelRules, ASharedStreamIsCutEvenly) {
  EXPECT_EQ(judged_tiny({"parallel.tp=4", "parallel.sequence_parallel=true",
                         "data.sequence_length=7", "train.micro_batch=1"}),
            "parallel.sequence_parallel is true but a micro-batch has 7 tokens on a rank "
            "(train.micro_batch 1 x data.sequence_length 7 / parallel.cp 1) and parallel.tp is 4; "
            "choose sizes whose product tp divides, or sequence_parallel false");
  // The tokens that cp leaves are cut: 6 of 12.
  const std::vector<std::string> shared{"parallel.tp=4", "parallel.sequence_parallel=true",
                                        "parallel.cp=2", "data.sequence_length=12",
                                        "train.micro_batch=1"};
  EXPECT_NE(judged_tiny(shared).find("has 6 tokens on a rank"), std::string::npos)
      << judged_tiny(shared);
}

TEST(Parallel, RefusesReplaysWhereSumsHaveAnotherOrder) {
  EXPECT_EQ(judged_tiny({"health.replay_every=5", "parallel.collectives=native", "parallel.tp=2"}),
            "parallel.collectives is native, which sums in another order in another place; choose "
            "replay_every 0, or collectives exact");
  EXPECT_EQ(judged_tiny({"health.replay_every=5", "parallel.collectives=native"}), "");
}

TEST(ParallelRules, EveryStageOfAPipelineHasBlocksAndItsScheduleFits) {
  EXPECT_EQ(judged_tiny({"parallel.pp=2"}), "");
  EXPECT_EQ(
      judged_tiny({"parallel.pp=4"}),
      "parallel.pp is 4 and parallel.virtual_stages 1, but model.num_hidden_layers is 2: each "
      "of the 4 virtual stages has at least one; choose a product of 2 or less");
  EXPECT_EQ(judged_tiny({"parallel.pp=2", "parallel.virtual_stages=2"}),
            "parallel.virtual_stages is 2 but parallel.schedule is \"1f1b\"; choose schedule "
            "\"interleaved\" with 2 virtual stages or more, or 1 virtual stage with another");
  EXPECT_EQ(
      judged_tiny({"parallel.pp=2", "parallel.schedule=interleaved"}),
      "parallel.virtual_stages is 1 but parallel.schedule is \"interleaved\"; choose schedule "
      "\"interleaved\" with 2 virtual stages or more, or 1 virtual stage with another");
  EXPECT_EQ(judged_tiny({"parallel.virtual_stages=2"}),
            "parallel.virtual_stages is 2 but parallel.pp is 1, without stages to divide; choose "
            "virtual_stages 1");
  EXPECT_EQ(
      judged_tiny({"parallel.pp=2", "parallel.schedule=zb", "parallel.ep=4"}),
      "parallel.schedule is \"zb\" but parallel.expert_rows is 2 and parallel.ep 4: rows that "
      "have no room would come in rounds whose products cannot wait; choose expert_rows 4 or "
      "more, or another schedule");
  EXPECT_EQ(judged_tiny({"parallel.pp=2", "parallel.schedule=zb", "train.recompute=true"}),
            "parallel.schedule is \"zb\" but train.recompute is true, which would overwrite what "
            "the products that wait still read; choose recompute false, or another schedule");
  EXPECT_EQ(judged_tiny({"parallel.pp=2", "moe.balance.scope=micro_batch"}),
            "parallel.pp is 2: later micro-batches begin "
            "before earlier ones have ended; choose scope \"global_batch\"");
  const std::vector<std::string> interleaved = {
      "model.num_hidden_layers=8", "parallel.pp=4",       "parallel.schedule=interleaved",
      "parallel.virtual_stages=2", "train.micro_batch=2", "train.global_batch=12"};
  EXPECT_EQ(judged_on(4, interleaved),
            "parallel.schedule is \"interleaved\" but a step has 6 micro-batches a rank, which "
            "parallel.pp 4 must divide; choose another train.global_batch or schedule");
}

TEST(ParallelRules, TspRanksHoldEquallyManyKeyHeadsAndNoTpBeside) {
  const std::vector<std::string> dense = {
      "model.layer_types=full_attention", "model.num_attention_heads=8",
      "model.num_key_value_heads=4", "model.intermediate_size=40", "data.sequence_length=64"};
  const auto with = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), dense.begin(), dense.end());
    return judged_tiny(overrides);
  };
  EXPECT_EQ(with({"parallel.tsp=4"}), "");
  EXPECT_EQ(with({"parallel.tsp=8"}), "");
  EXPECT_EQ(with({"parallel.tsp=6"}),
            "parallel.tsp is 6 but model.num_key_value_heads is 4: one must divide the other; "
            "choose 4 or 8");
  EXPECT_EQ(with({"parallel.tsp=2", "parallel.tsp_head_buckets=2"}), "");
  EXPECT_EQ(with({"parallel.tsp=2", "parallel.tsp_head_buckets=4"}),
            "parallel.tsp_head_buckets is 4 but a rank has 2 key heads (model.num_key_value_heads "
            "4, parallel.tsp 2), which it must divide; choose 2");
  EXPECT_EQ(with({"parallel.tsp_head_buckets=2"}),
            "parallel.tsp_head_buckets is 2 but parallel.tsp is 1; choose 1");
  EXPECT_EQ(with({"parallel.tsp=4", "model.intermediate_size=34"}),
            "parallel.tsp is 4 but model.intermediate_size is 34: each rank takes an equal part "
            "of it; choose 2");
  EXPECT_EQ(with({"parallel.tsp=2", "parallel.tp=2"}),
            "parallel.tsp is 2 and parallel.tp 2, which cut the same heads and widths; choose 1 "
            "for one of them");
  EXPECT_EQ(with({"parallel.tsp=2", "parallel.cp_exchange=ring"}),
            "parallel.tsp is 2 but parallel.cp_exchange is ring; choose cp_exchange all_gather");
  EXPECT_EQ(with({"parallel.tsp=2", "parallel.pp=2", "parallel.schedule=zb"}),
            "parallel.tsp is 2 but parallel.schedule is \"zb\", whose products wait longer than "
            "the weights of other ranks stay; choose another schedule");
  EXPECT_EQ(with({"parallel.tsp=4", "parallel.cp=3", "data.sequence_length=64"}),
            "parallel.cp 3 x parallel.tsp 4 is 12 but data.sequence_length is 64: zigzag gives a "
            "rank two equal chunks of at least 1 token; choose a product of 8 or 16");
  const ParallelSpec p = resolve_parallel(
      load_tiny({"model.num_key_value_heads=4", "parallel.tsp=4", "data.sequence_length=64"}), 12);
  EXPECT_EQ(p.dp, 3);
  EXPECT_EQ(p.num_ranks(), 12);
  EXPECT_EQ(p.sequence_ranks(), 4);
}

TEST(ParallelRules, StatesAreCutByWholeKeyHeadsAndNotFolded) {
  const std::vector<std::string> linear = {
      "model.layer_types=linear+moe", "model.linear_num_key_heads=2",
      "model.linear_num_value_heads=4", "model.linear_conv_kernel_dim=8"};
  const auto message = [&](std::vector<std::string> more) {
    more.insert(more.begin(), linear.begin(), linear.end());
    return judged_tiny(more);
  };
  EXPECT_EQ(message({"parallel.tp=2"}), "");
  EXPECT_EQ(message({"parallel.tp=4"}),
            "parallel.tp is 4 but model.linear_num_key_heads is 2: each rank takes equally many of "
            "them, with the states of their value heads; choose 2");
  EXPECT_EQ(
      message({"parallel.tsp=2"}),
      "parallel.tsp is 2 but model.layer_types has linear mixers, whose states are not folded; "
      "choose parallel.cp for them and parallel.tsp 1");
  // A convolution reads the 7 tokens before; a zigzag chunk of 4 ranks would have 4.
  EXPECT_EQ(
      message({"parallel.cp=4"}),
      "parallel.cp is 4 but data.sequence_length is 32: zigzag gives a rank two equal chunks of "
      "at least 7 tokens; choose 2");
  EXPECT_EQ(message({"model.linear_causal=false", "parallel.cp=2"}), "");
  EXPECT_EQ(message({"model.linear_causal=false", "parallel.cp=2", "parallel.state_exchange=scan"}),
            "parallel.state_exchange is scan but model.linear_causal is false, where states come "
            "from both sides; choose all_gather");
}

TEST(ParallelRules, RanksFillTheMesh) {
  const ParallelSpec p = resolve_parallel(load_tiny({"parallel.tp=2", "parallel.cp=2"}), 12);
  EXPECT_EQ(p.dp, 3);
  EXPECT_EQ(p.num_ranks(), 12);
  EXPECT_EQ(resolve_parallel(load_tiny({"parallel.dp=2"}), 2).dp, 2);
}

TEST(ParallelRules, RanksThatDoNotFitAreToldWhatWould) {
  for (const int fits : {1, 2, 3, 6}) EXPECT_EQ(judged_on(fits, {}), "");
  for (const int wrong : {4, 5, 7, 12})
    EXPECT_NE(judged_on(wrong, {}).find("choose one of: 1 2 3 6"), std::string::npos) << wrong;
  EXPECT_EQ(judged_on(6, {"parallel.tp=4"}),
            "6 ranks, but parallel.pp 1 x parallel.cp 1 x parallel.tp 4 is 4; start one of: 4 8 12 "
            "24 ranks");
  EXPECT_EQ(
      judged_on(6, {"parallel.tp=2", "parallel.dp=2"}),
      "6 ranks, but parallel.dp is 2 and parallel.pp 1 x parallel.cp 1 x parallel.tp 2; start "
      "4 ranks, or choose parallel.dp 0: as many as there are");
  // Four batches of a step, but two streams.
  const std::vector<std::string> two_streams{"train.global_batch=8", "data.num_streams=2"};
  EXPECT_EQ(judged_on(2, two_streams), "");
  EXPECT_NE(judged_on(4, two_streams).find("in 2 streams (data.num_streams); choose one of: 1 2"),
            std::string::npos)
      << judged_on(4, two_streams);
  EXPECT_NE(judged_on(0, {}).find("expected 1 or more"), std::string::npos);
}

}  // namespace
}  // namespace ashlar
