#include "ashlar/parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "ashlar/comm/recording/recording.h"

namespace ashlar::parallel {
namespace {

std::vector<int> ranks_of(const comm::Group& group) {
  return {group.world_ranks().begin(), group.world_ranks().end()};
}

TEST(Mesh, TpVariesFastestThenTspThenCpThenDp) {
  const Mesh mesh{{1, 2, 3, 2, 2}};
  EXPECT_EQ(mesh.num_ranks(), 24);
  int rank = 0;
  for (int dp = 0; dp < 2; ++dp)
    for (int cp = 0; cp < 3; ++cp)
      for (int tsp = 0; tsp < 2; ++tsp)
        for (int tp = 0; tp < 2; ++tp, ++rank) {
          EXPECT_EQ(mesh.coordinates(rank), (std::array{0, dp, cp, tsp, tp}));
          EXPECT_EQ(mesh.number_within(rank, std::array{Axis::kCp, Axis::kDp}), dp * 3 + cp);
        }
}

ParallelSpec mesh_spec(int64_t pp, int64_t dp, int64_t cp, int64_t tp, int64_t ep = 1) {
  ParallelSpec spec;
  spec.pp = pp, spec.dp = dp, spec.cp = cp, spec.tp = tp, spec.ep = ep;
  return spec;
}

ModelSpec model_with(int64_t num_key_heads, bool tied_head = true) {
  ModelKeys keys;
  keys.num_hidden_layers = 1;
  keys.layer_types = {LayerType::kFullAttention};
  keys.num_key_value_heads = num_key_heads;
  keys.tie_word_embeddings = tied_head;
  return model_of(keys);
}

TEST(Mesh, GroupsAreTheRanksAlongTheirAxes) {
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(7, 12, {}, allocator);  // dp 1, cp 0, tp 1
  const Groups groups(world.group(), mesh_spec(1, 2, 3, 2), model_with(2));
  EXPECT_EQ(ranks_of(groups.tp()), (std::vector{6, 7}));
  EXPECT_EQ(ranks_of(groups.cp()), (std::vector{7, 9, 11}));
  EXPECT_EQ(ranks_of(groups.data()), (std::vector{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(groups.model().size(), 12);
  EXPECT_EQ(groups.data().rank(), 3);
  EXPECT_EQ(groups.coordinate(Axis::kDp), 1);
}

TEST(Mesh, TspRanksShareSequencesAndHoldOtherHeads) {
  Allocator allocator(Device::kMeta);
  ParallelSpec spec = mesh_spec(1, 2, 2, 1);
  spec.tsp = 3;
  comm::RecordingWorld world(7, 12, {}, allocator);  // dp 1, cp 0, tsp 1
  const Groups groups(world.group(), spec, model_with(3));
  EXPECT_EQ(ranks_of(groups.tsp()), (std::vector{6, 7, 8}));
  EXPECT_EQ(ranks_of(groups.cp()), (std::vector{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(ranks_of(groups.cuts_data()), (std::vector{1, 4, 7, 10}));
  EXPECT_EQ(groups.data().size(), 12);
  EXPECT_EQ(groups.tsp().lane(), "shards");
  EXPECT_EQ(&groups.heads(), &groups.tsp());
  EXPECT_EQ(&groups.heads_data(), &groups.cuts_data());
  const nn::Share share = share_of(spec, model_with(3), 7);
  EXPECT_EQ(share.heads.index, 1);
  EXPECT_EQ(share.width.count, 3);
  EXPECT_EQ(share.expert_width.count, 1);
  EXPECT_EQ(share.uncut.count, 1);
  EXPECT_EQ(share.units.cuts, nn::CutUnits::kOne);
}

TEST(Mesh, TspRanksHoldTheSameHeadsWhereKeyHeadsAreFewer) {
  Allocator allocator(Device::kMeta);
  ParallelSpec spec = mesh_spec(1, 2, 1, 1);
  spec.tsp = 6;
  comm::RecordingWorld world(10, 12, {}, allocator);  // dp 1, tsp 4
  const Groups groups(world.group(), spec, model_with(2));
  EXPECT_EQ(ranks_of(groups.tsp()), (std::vector{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(ranks_of(groups.heads()), (std::vector{10, 11}));
  EXPECT_EQ(ranks_of(groups.heads_data()), (std::vector{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(ranks_of(groups.cuts_data()), (std::vector{4, 10}));
  EXPECT_EQ(groups.heads().lane(), "shards");
  const nn::Share share = share_of(spec, model_with(2), 10);
  EXPECT_EQ(share.heads.index, 0);
  EXPECT_EQ(share.heads.count, 2);
  EXPECT_EQ(share.width.index, 4);
  EXPECT_EQ(share.width.count, 6);
  EXPECT_EQ(share.units.cuts, nn::CutUnits::kHeadsAndWidth);
}

TEST(Mesh, GroupsOfPipelinesAndExperts) {
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(21, 24, {}, allocator);  // pp 2, dp 1, cp 0, tp 1; number 2 in data
  const Groups groups(world.group(), mesh_spec(3, 2, 2, 2, 2), model_with(2));
  EXPECT_EQ(ranks_of(groups.pp()), (std::vector{5, 13, 21}));
  ASSERT_TRUE(groups.ends());
  EXPECT_EQ(ranks_of(*groups.ends()), (std::vector{5, 21}));
  EXPECT_EQ(ranks_of(groups.losses()), (std::vector{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(groups.all().size(), 24);
  EXPECT_EQ(ranks_of(groups.ep()), (std::vector{21, 23}));
  EXPECT_EQ(ranks_of(groups.experts_data()), (std::vector{17, 21}));
  comm::RecordingWorld next(23, 24, {}, allocator);
  const Groups of_next(next.group(), mesh_spec(3, 2, 2, 2, 2), model_with(2));
  EXPECT_EQ(ranks_of(of_next.experts_data()), (std::vector{23, 19}));
  comm::RecordingWorld middle(8, 24, {}, allocator);
  EXPECT_FALSE(Groups(middle.group(), mesh_spec(3, 2, 2, 2), model_with(2)).ends());
  EXPECT_FALSE(Groups(world.group(), mesh_spec(3, 2, 2, 2), model_with(2, false)).ends());
}

TEST(Mesh, NeighboursKeepExpertsOfDifferentBlocks) {
  for (int data = 0; data < 8; ++data) EXPECT_EQ(expert_shard(data, 8, 1), data);
  std::vector<int> shards;
  for (int data = 0; data < 32; ++data) shards.push_back(expert_shard(data, 32, 4));
  EXPECT_EQ(shards, (std::vector{0, 2, 4, 6, 1, 3, 5, 7, 2, 4, 6, 0, 3, 5, 7, 1,
                                 4, 6, 0, 2, 5, 7, 1, 3, 6, 0, 2, 4, 7, 1, 3, 5}));
  // Each shard of each set is kept by one rank, whatever divides what.
  for (const auto& [num_data, ep] : {std::pair{12, 4}, {8, 8}, {6, 2}, {40, 8}}) {
    std::set<std::pair<int, int>> kept;
    for (int data = 0; data < num_data; ++data)
      kept.insert({data % ep, expert_shard(data, num_data, ep)});
    EXPECT_EQ(int(kept.size()), num_data);
    EXPECT_EQ(kept.rbegin()->second, num_data / ep - 1);
  }
}

// Every stage has its blocks, and the two ends a copy each of a tied embedding.
TEST(Mesh, SharesOfPipelinesAndExperts) {
  ModelKeys keys;
  keys.num_hidden_layers = 7;
  keys.layer_types.assign(7, LayerType::kFullAttention);
  const ModelSpec whole = model_of(keys);
  ParallelSpec spec = mesh_spec(2, 4, 1, 2, 2);
  spec.virtual_stages = 2;
  const nn::Share share = share_of(spec, whole, 8 + 2 * 3 + 1);  // pp 1, dp 3, tp 1
  EXPECT_EQ(share.stage.borders, (std::vector<int64_t>{0, 2, 4, 6, 7}));
  EXPECT_EQ(share.stage.chunk(0, 7), (nn::BlockRange{2, 4}));
  EXPECT_EQ(share.stage.chunk(1, 7), (nn::BlockRange{6, 7}));
  EXPECT_TRUE(share.stage.holds(3));
  EXPECT_FALSE(share.stage.holds(4));
  EXPECT_TRUE(share.stage.last() && !share.stage.first());
  EXPECT_EQ(share.experts.index, 1);
  EXPECT_EQ(share.experts.count, 2);
  EXPECT_EQ(share.embedding.index, 1);
  EXPECT_EQ(share.embedding.count, 2);
}

// Staging memory tells how many lanes a rank has.
TEST(Mesh, WhatComputeWaitsForHasLanesOfItsOwnBesideBulk) {
  const auto num_lanes = [](const ParallelSpec& spec) {
    Allocator allocator(Device::kMeta);
    comm::RecordingWorld world(0, int(spec.num_ranks()), {}, allocator);
    const Groups groups(world.group(), spec, model_with(3));
    return allocator.counts().total.current_bytes / comm::Options{}.staging_bytes;
  };
  EXPECT_EQ(num_lanes(mesh_spec(1, 1, 1, 1)), 0);
  EXPECT_EQ(num_lanes(mesh_spec(1, 2, 1, 1)), 1);
  EXPECT_EQ(num_lanes(mesh_spec(1, 1, 1, 2)), 1);  // no bulk
  EXPECT_EQ(num_lanes(mesh_spec(1, 1, 2, 1)), 2);
  EXPECT_EQ(num_lanes(mesh_spec(1, 2, 1, 2)), 2);
  EXPECT_EQ(num_lanes(mesh_spec(1, 2, 2, 2)), 3);
  EXPECT_EQ(num_lanes(mesh_spec(1, 2, 1, 1, 2)), 2);
}

}  // namespace
}  // namespace ashlar::parallel
