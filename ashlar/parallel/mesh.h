// Ranks as points of a mesh with the axes pp, dp, cp, tsp, tp.  tp varies fastest, then tsp, cp, dp
// and pp, so that the ranks that communicate most are adjacent.
//
//   rank = (((pp * DP + dp) * CP + cp) * TSP + tsp) * TP + tp
//
// Expert parallelism has no axis of its own: among the ranks with different tokens, dp x cp x tsp,
// number d = (dp * CP + cp) * TSP + tsp holds the experts of share d % EP.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/share.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::parallel {

enum class Axis : uint8_t { kPp, kDp, kCp, kTsp, kTp };
inline constexpr int kNumAxes = 5;
// The axes along which ranks see different tokens.
inline constexpr std::array<Axis, 3> kTokenAxes{Axis::kDp, Axis::kCp, Axis::kTsp};
std::string_view name_of(Axis axis);  // "tp"

struct Mesh {
  std::array<int, kNumAxes> sizes{1, 1, 1, 1, 1};
  static Mesh of(const ParallelSpec& resolved);
  int size(Axis axis) const { return sizes[size_t(axis)]; }
  int num_ranks() const;
  int coordinate(int rank, Axis axis) const;
  std::array<int, kNumAxes> coordinates(int rank) const;
  // The rank's number, in rank order, among the ranks that differ from it in `axes` only.
  int number_within(int rank, std::span<const Axis> axes) const;
};

// The number of shares, each of whole key heads, into which tsp ranks cut the heads.  Where there
// are fewer shares than ranks, rank r of tsp holds share r % shares.
int num_head_shares(const ParallelSpec& resolved, const ModelSpec& whole);
// The part of the model that `rank` of the mesh holds.
nn::Share share_of(const ParallelSpec& resolved, const ModelSpec& whole, int rank);
// The shard of its experts that rank `data` of `num_data` keeps.  The sets of experts that ep
// divides rotate their shards against each other, so that adjacent ranks keep shards of different
// blocks: a file of a checkpoint has room for one box of a tensor (checkpoint/format/layout.h).
int expert_shard(int data, int num_data, int ep);
// The first block of each virtual stage of a pipeline, and the end of the last stage.  Stages are
// as even as possible, and the longer ones come first, since the last stage has the head.
std::vector<int64_t> stage_borders(int64_t num_blocks, int64_t num_virtual_stages);

// The groups that a rank of the mesh belongs to.
//
//   tsp, tp, pp   ranks along one axis
//   cp            cp x tsp: ranks that share each sequence
//   data          dp x cp x tsp: ranks that saw different tokens; they add up gradients and share
//                 ZeRO's shards of the weights that all of them hold
//   heads         adjacent ranks of tsp that together hold all heads: all of tsp, or a part of it
//                 where there are fewer key heads than ranks
//   cuts data     dp x cp: ranks of data with the same shares of widths; for these weights it takes
//                 the place of data
//   heads data    ranks of data with the same share of heads
//   model         dp x cp x tsp x tp: ranks that together hold one copy of a stage's state, or
//                 several
//   losses        pp x dp x cp x tsp: ranks that together know the loss of every token
//   ep            adjacent ranks of data, with different experts
//   experts data  ranks of data with the same experts, in the order of expert_shard; for experts it
//                 takes the place of data
//   ends          the first and the last stage, with two copies of a tied embedding; null elsewhere
//
// Groups of the same ranks are one group.
//
// Lanes (comm/group.h): compute waits for the operations of cp, tsp and tp, so cp has the lane
// "keys", tsp and heads the lane "shards", and tp the lane "sums", apart from the bulk operations
// of ZeRO and Muon, which queue on the world's lane with the decisions of the run.  Where nothing
// is reduced over data ranks there are no bulk operations to wait behind, and the world's lane has
// all.
class Groups {
 public:
  // Splits `world` in one order on every rank.  The world must have mesh.num_ranks() ranks.
  Groups(comm::Group& world, const ParallelSpec& resolved, const ModelSpec& whole);

  const Mesh& mesh() const { return mesh_; }
  comm::Group& world() const { return world_; }
  comm::Group& cp() const { return *cp_; }
  comm::Group& tsp() const { return *tsp_; }
  comm::Group& tp() const { return *tp_; }
  comm::Group& data() const { return *data_; }
  comm::Group& model() const { return *model_; }
  comm::Group& pp() const { return *pp_; }
  comm::Group& losses() const { return losses_ ? *losses_ : *data_; }
  comm::Group& ep() const { return *ep_; }
  // Adjacent ranks that together hold all products of a stage, where nothing is sharded.
  comm::Group& products() const { return products_ ? *products_ : *tp_; }
  comm::Group& experts_data() const { return experts_data_ ? *experts_data_ : *data_; }
  comm::Group& cuts_data() const { return cuts_data_ ? *cuts_data_ : *data_; }
  comm::Group& heads() const { return heads_ ? *heads_ : *tsp_; }
  comm::Group& heads_data() const { return heads_data_ ? *heads_data_ : cuts_data(); }
  comm::Group* ends() const { return ends_.get(); }
  // Every rank of the mesh.
  comm::Group& all() const { return pp_->size() > 1 ? world_ : *model_; }
  // Every group once, without those of techniques that the recipe does not ask for.
  std::vector<const comm::Group*> list() const;
  int rank() const { return world_.rank(); }
  int coordinate(Axis axis) const { return mesh_.coordinate(rank(), axis); }

 private:
  std::unique_ptr<comm::Group> along(std::string_view name, std::span<const Axis> axes,
                                     std::string_view lane = {}) const;
  comm::Group& world_;
  Mesh mesh_;
  std::unique_ptr<comm::Group> cp_, tsp_, tp_, data_, model_, pp_, ep_;
  // Null where not needed.
  std::unique_ptr<comm::Group> losses_, cuts_data_, heads_, heads_data_, experts_data_, products_,
      ends_;
};

}  // namespace ashlar::parallel
