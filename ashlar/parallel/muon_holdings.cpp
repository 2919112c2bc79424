// How it works.  Ranks with the same share of the heads and the same set of experts have the same
// flat state, and ZeRO keeps ranges of it.  State lists the Muon tensors in each of these flat
// states once; append then cuts the list of a rank's state at the ranges of its shard.
//
//   flat state of a unit     [ tensor a ][  tensor b  ][ c ][     tensor d     ]
//   kept by the rank               |------------|             |------|
//   holdings                       [ a   ][  b  ]             [  d   ]
//
// Order matters: the holdings of this rank must have the order of its Muon parameters, since their
// gradients are matched by number.  Both walk the tensors of the model, their placements, and then
// the ranges.
#include "ashlar/parallel/muon_holdings.h"

#include <array>
#include <map>

#include "ashlar/optim/optimizer.h"
#include "ashlar/parallel/muon.h"
#include "ashlar/parallel/placement.h"

namespace ashlar::parallel {
namespace {

// A placement of a Muon tensor, in the flat state of ranks that hold the same.
struct LocalStretch {
  int64_t tensor;
  Placement place;
  nn::FlatRange at;
};

class State {
 public:
  // group: the ranks that keep the matrices.  dtype: the type of the flat state, on which its gaps
  // depend.
  State(const ModelSpec& whole, const ParallelSpec& parallel, const comm::Group& group,
        const Zero& zero, const OptimSpec& spec, DType dtype)
      : group_(group), zero_(zero), spec_(spec), dtype_(dtype), tp_(int(parallel.tp)) {
    for (const int rank : group.world_ranks()) {
      const nn::Share share = share_of(parallel, whole, rank);
      const auto [found, added] = number_of_share_.try_emplace(
          {share.heads.index, share.width.index, share.experts.index}, states_.size());
      if (added) states_.push_back(stretches(whole, share));
      state_of_rank_.push_back(found->second);
    }
  }

  const std::vector<MuonTensor>& tensors() const { return tensors_; }

  // rank: its number in the group.
  void append(int rank, std::vector<Holding>& list) const {
    const bool sharded = zero_.stage() > 0;
    const int world_rank = group_.world_ranks()[size_t(rank)];
    int64_t unit = -1;
    std::vector<Range> kept;
    for (const LocalStretch& s : states_[state_of_rank_[size_t(rank)]]) {
      const Range all{s.at.offset, s.at.offset + s.at.numel};
      if (s.at.unit != unit) {  // adjacent entries are often of one unit
        unit = s.at.unit;
        kept = sharded ? zero_.kept(unit, world_rank) : std::vector<Range>{};
      }
      if (!sharded) kept = {all};
      const auto [copies, copy] = copy_of(rank, s);
      for (const Range& range : kept) {
        const Range part = intersect(range, all);
        if (!part.empty())
          list.push_back({s.tensor, s.place.copy * copies + copy, s.place.boxes,
                          part.begin - all.begin, part.end - all.begin});
      }
    }
  }

 private:
  // Without shards each rank of the group that divides something else keeps a copy: the number of
  // copies, and the number of this one.
  std::pair<int, int> copy_of(int rank, const LocalStretch& s) const {
    if (zero_.stage() > 0) return {1, 0};
    const int parts = zero_.num_parts(s.at.unit);
    return {group_.size() / tp_ / parts, rank / tp_ / parts};
  }

  std::vector<LocalStretch> stretches(const ModelSpec& whole, const nn::Share& share) {
    const nn::FlatLayout flat = nn::flat_layout(whole, share, dtype_);
    std::vector<LocalStretch> list;
    size_t next = 0;
    const nn::ModelWeights weights(whole, share);
    weights.for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
      if (info.buffer) return;
      nn::FlatRange range = flat.ranges[next++];  // one for each trained tensor, in this order
      const Parameter chosen = as_recipe_says(info);
      if (chosen.kind != OptimizerKind::kMuon) return;
      for (Placement& place : placements(info, share)) {
        range.numel = place.numel();
        list.push_back({number_of(chosen, place.global_shape), std::move(place), range});
        range.offset += range.numel;
      }
    });
    return list;
  }

  Parameter as_recipe_says(const nn::ParameterInfo& info) const {
    std::vector<Parameter> one = {parameter_of(info, dtype_)};
    optim::apply_spec(spec_, one);
    return one[0];
  }

  int64_t number_of(const Parameter& p, const Shape& global_shape) {
    const auto [found, added] = number_of_.try_emplace(p.logical.name, int64_t(tensors_.size()));
    if (added) tensors_.push_back({global_shape, p.num_matrices});
    return found->second;
  }

  const comm::Group& group_;
  const Zero& zero_;
  const OptimSpec spec_;
  const DType dtype_;
  const int tp_;
  std::map<std::string, int64_t> number_of_;
  std::vector<MuonTensor> tensors_;
  // Indexed by the part of the heads, of the width, and of the experts.
  std::map<std::array<int, 3>, size_t> number_of_share_;
  std::vector<std::vector<LocalStretch>> states_;
  std::vector<size_t> state_of_rank_;
};

}  // namespace

std::unique_ptr<optim::Matrices> make_matrices(Allocator& allocator, const Groups& groups,
                                               const ModelSpec& whole, const ParallelSpec& parallel,
                                               const Zero& zero,
                                               const std::vector<Parameter>& parameters,
                                               const OptimSpec& spec, const nn::Types& types) {
  comm::Group& group = zero.stage() > 0 ? groups.model() : groups.products();
  const int num_steps = int(spec.muon_steps);
  if (group.size() == 1)
    return std::make_unique<optim::LocalMatrices>(parameters, types.compute, num_steps);
  const State state(whole, parallel, group, zero, spec, types.stream);
  std::vector<Tensor> gradients;
  for (const Parameter& p : parameters)
    if (p.kind == OptimizerKind::kMuon) gradients.push_back(p.gradient);
  MuonPlan plan = plan_muon(
      state.tensors(), [&](int rank, std::vector<Holding>& list) { state.append(rank, list); },
      group.rank(), group.size(), parallel.muon);
  return std::make_unique<DistributedMatrices>(allocator, group, std::move(plan),
                                               std::move(gradients), types.compute, num_steps);
}

}  // namespace ashlar::parallel
