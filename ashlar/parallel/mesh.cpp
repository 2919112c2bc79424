#include "ashlar/parallel/mesh.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::parallel {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> names = {"pp", "dp", "cp", "tsp", "tp"};
  return names[size_t(axis)];
}

Mesh Mesh::of(const ParallelSpec& resolved) {
  ASHLAR_ASSERT(resolved.dp > 0);
  return {
      {int(resolved.pp), int(resolved.dp), int(resolved.cp), int(resolved.tsp), int(resolved.tp)}};
}

int Mesh::num_ranks() const {
  int product = 1;
  for (const int size : sizes) product *= size;
  return product;
}

std::array<int, kNumAxes> Mesh::coordinates(int rank) const {
  std::array<int, kNumAxes> at{};
  for (int axis = kNumAxes - 1; axis >= 0; --axis) {
    at[size_t(axis)] = rank % sizes[size_t(axis)];
    rank /= sizes[size_t(axis)];
  }
  return at;
}

int Mesh::coordinate(int rank, Axis axis) const {
  return coordinates(rank)[size_t(axis)];
}

int Mesh::number_within(int rank, std::span<const Axis> axes) const {
  const auto at = coordinates(rank);
  int number = 0;
  for (int axis = 0; axis < kNumAxes; ++axis)
    if (std::find(axes.begin(), axes.end(), Axis(axis)) != axes.end())
      number = number * sizes[size_t(axis)] + at[size_t(axis)];
  return number;
}

int expert_shard(int data, int num_data, int ep) {
  const int num_shards = num_data / ep, set = data % ep;
  return (data / ep + set * num_shards / ep) % num_shards;
}

std::vector<int64_t> stage_borders(int64_t num_blocks, int64_t num_virtual_stages) {
  std::vector<int64_t> borders = {0};
  for (int64_t v = 0; v < num_virtual_stages; ++v)
    borders.push_back(borders.back() + num_blocks / num_virtual_stages +
                      (v < num_blocks % num_virtual_stages));
  return borders;
}

int num_head_shares(const ParallelSpec& resolved, const ModelSpec& whole) {
  const auto num_keys = [](const auto& mixer) { return mixer.num_key_heads; };
  return int(std::min(resolved.tsp, std::visit(num_keys, whole.blocks[0].mixer)));
}

nn::Share share_of(const ParallelSpec& resolved, const ModelSpec& whole, int rank) {
  const Mesh mesh = Mesh::of(resolved);
  nn::Share share = nn::Share::even(mesh.coordinate(rank, Axis::kTp), int(resolved.tp));
  if (resolved.tsp > 1) {
    const int tsp = mesh.coordinate(rank, Axis::kTsp), heads = num_head_shares(resolved, whole);
    share.heads = {tsp % heads, heads};
    share.width = {tsp, int(resolved.tsp)};
    share.head_buckets = int(resolved.tsp_head_buckets);
    share.units.cuts = heads < resolved.tsp ? nn::CutUnits::kHeadsAndWidth : nn::CutUnits::kOne;
  }
  const int data = mesh.number_within(rank, kTokenAxes);
  share.experts = {data % int(resolved.ep), int(resolved.ep)};
  share.expert_rows = resolved.expert_rows;
  share.units.experts = resolved.ep > 1;
  if (resolved.pp == 1) return share;
  share.stage = {mesh.coordinate(rank, Axis::kPp), int(resolved.pp),
                 stage_borders(whole.num_blocks(), resolved.pp * resolved.virtual_stages)};
  share.units.embedding = whole.tied_head;
  if (whole.tied_head) share.embedding = {share.stage.first() ? 0 : 1, 2};
  return share;
}

Groups::Groups(comm::Group& world, const ParallelSpec& resolved, const ModelSpec& whole)
    : world_(world), mesh_(Mesh::of(resolved)) {
  ASHLAR_ASSERT(world.size() == mesh_.num_ranks());
  data_ = along("data", kTokenAxes);
  const bool bulk = data_->size() > 1;  // ZeRO's operations, behind which sums would wait
  cp_ = along("cp", std::array{Axis::kCp, Axis::kTsp}, bulk ? "keys" : "");
  tsp_ = along("tsp", std::array{Axis::kTsp}, bulk ? "shards" : "");
  tp_ = along("tp", std::array{Axis::kTp}, bulk ? "sums" : "");
  model_ = along("model", std::array{Axis::kDp, Axis::kCp, Axis::kTsp, Axis::kTp});
  pp_ = along("pp", std::array{Axis::kPp});
  const int ep = int(resolved.ep);
  ep_ = data_->split(
      "ep",
      [&](int rank) {
        return comm::SplitKey{rank / ep, rank};
      },
      bulk ? "experts" : "");
  if (ep > 1)
    experts_data_ = data_->split("experts data", [&](int rank) {
      return comm::SplitKey{rank % ep, expert_shard(rank, data_->size(), ep)};
    });
  if (tsp_->size() > 1) cuts_data_ = along("cuts data", std::array{Axis::kDp, Axis::kCp});
  if (const int heads = num_head_shares(resolved, whole); heads < tsp_->size()) {
    heads_ = tsp_->split("heads", [&](int rank) { return comm::SplitKey{rank / heads, rank}; });
    heads_data_ = data_->split("heads data", [&](int rank) {
      return comm::SplitKey{rank % heads, rank};
    });
  }
  // Either ep divides tsp, or tsp divides ep.
  const int products = std::max(ep, tsp_->size()) * tp_->size();
  if (ep > 1 || tsp_->size() > 1)
    products_ = model_->split("products", [&](int rank) {
      return comm::SplitKey{rank / products, rank};
    });
  if (pp_->size() == 1) return;
  losses_ = along("losses", std::array{Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTsp});
  if (!whole.tied_head) return;
  const int last = pp_->size() - 1;
  ends_ = pp_->split("ends", [&](int rank) {
    return comm::SplitKey{rank == 0 || rank == last ? 0 : -1, rank};
  });
}

std::vector<const comm::Group*> Groups::list() const {
  std::vector<const comm::Group*> list = {&world_, cp_.get(), tp_.get(), data_.get(), model_.get()};
  for (const auto* group : {&tsp_, &pp_, &losses_, &ep_, &heads_, &cuts_data_, &heads_data_,
                            &experts_data_, &products_, &ends_})
    if (*group && (*group)->size() > 1) list.push_back(group->get());
  return list;
}

std::unique_ptr<comm::Group> Groups::along(std::string_view name, std::span<const Axis> axes,
                                           std::string_view lane) const {
  std::vector<Axis> others;
  for (int axis = 0; axis < kNumAxes; ++axis)
    if (std::find(axes.begin(), axes.end(), Axis(axis)) == axes.end()) others.push_back(Axis(axis));
  return world_.split(
      std::string(name),
      [&](int rank) {
        return comm::SplitKey{mesh_.number_within(rank, others), rank};
      },
      lane);
}

}  // namespace ashlar::parallel
