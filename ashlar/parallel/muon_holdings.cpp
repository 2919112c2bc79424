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

#include <algorithm>
#include <array>
#include <map>

#include "ashlar/optim/optimizer.h"
#include "ashlar/parallel/muon.h"
#include "ashlar/parallel/placement.h"
#include "ashlar/tensor/box_order.h"

namespace ashlar::parallel {
namespace {

// A placement of a Muon tensor, in the flat state of ranks that hold the same.
struct LocalStretch {
  int64_t tensor;
  Placement place;
  nn::FlatRange at;
};

struct LocalState {
  std::vector<LocalStretch> stretches;         // in the order of memory
  std::vector<std::vector<size_t>> of_tensor;  // the numbers of those of each tensor
};

// The elements of the flat state among which are all that the stretch has of the matrix.
Range place_of(const MatrixNumber& matrix, int64_t matrix_numel, const LocalStretch& s) {
  const auto end_of = [&](int64_t index) {
    return elements_before(s.place.global_shape, s.place.boxes[0], index * matrix_numel);
  };
  const int64_t begin = s.at.offset;
  if (s.place.boxes.size() > 1) return {begin, begin + s.at.numel};
  return {begin + end_of(matrix.index), begin + end_of(matrix.index + 1)};
}

class State {
 public:
  // ranks: those that keep the matrices.  dtype: the type of the flat state, on which its gaps
  // depend.
  State(const Recipe& recipe, const ParallelSpec& parallel, std::span<const int> ranks,
        std::shared_ptr<const ShardMap> map, DType dtype)
      : ranks_(ranks.begin(), ranks.end()),
        map_(std::move(map)),
        spec_(recipe.optim),
        tune_(recipe.tune),
        dtype_(dtype),
        tp_(int(parallel.tp)) {
    const ModelSpec whole = model_of(recipe.model);
    for (const int rank : ranks_) {
      const nn::Share share = share_of(parallel, whole, rank);
      const auto [found, added] = number_of_share_.try_emplace(
          {share.heads.index, share.width.index, share.experts.index}, states_.size());
      if (added) states_.push_back(state_of(whole, share));
      state_of_rank_.push_back(found->second);
    }
  }

  const std::vector<MuonTensor>& tensors() const { return tensors_; }

  // As HoldingsOf.  rank: its number among them.
  void append(int rank, const std::optional<MatrixNumber>& only, std::vector<Holding>& list) const {
    const LocalState& state = states_[state_of_rank_[size_t(rank)]];
    if (!only) {
      for (const LocalStretch& s : state.stretches) add(rank, s, all_of(s), list);
      return;
    }
    const MuonTensor& tensor = tensors_[size_t(only->tensor)];
    const int64_t matrix_numel = tensor.shape.numel() / tensor.num_matrices;
    if (size_t(only->tensor) >= state.of_tensor.size()) return;
    for (const size_t i : state.of_tensor[size_t(only->tensor)]) {
      const LocalStretch& s = state.stretches[i];
      add(rank, s, place_of(*only, matrix_numel, s), list);
    }
  }

 private:
  bool sharded() const { return map_->stage() > 0; }
  static Range all_of(const LocalStretch& s) { return {s.at.offset, s.at.offset + s.at.numel}; }

  // Appends what the rank keeps of a stretch; outside of `within` it may leave elements out.
  void add(int rank, const LocalStretch& s, const Range& within, std::vector<Holding>& list) const {
    const Range all = all_of(s);
    const auto [copies, copy] = copy_of(rank, s);
    const auto add_range = [&](const Range& range) {
      if (const Range part = intersect(range, all); !part.empty())
        list.push_back({s.tensor, s.place.copy * copies + copy, s.place.boxes,
                        part.begin - all.begin, part.end - all.begin});
    };
    if (!sharded()) return add_range(all);
    for (const Range& range : map_->kept(s.at.unit, ranks_[size_t(rank)], within)) add_range(range);
  }
  // Without shards each rank of the group that divides something else keeps a copy: the number of
  // copies, and the number of this one.
  std::pair<int, int> copy_of(int rank, const LocalStretch& s) const {
    if (sharded()) return {1, 0};
    const int parts = map_->num_parts(s.at.unit);
    return {int(ranks_.size()) / tp_ / parts, rank / tp_ / parts};
  }

  LocalState state_of(const ModelSpec& whole, const nn::Share& share) {
    const nn::FlatLayout flat = nn::flat_layout(whole, share, dtype_, tune_);
    LocalState state;
    size_t next = 0;
    const nn::ModelWeights weights(whole, share, {}, tune_);
    weights.for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
      if (!info.is_trained()) return;
      nn::FlatRange range = flat.ranges[next++];  // one for each trained tensor, in this order
      const Parameter chosen = as_recipe_says(info);
      if (chosen.kind != OptimizerKind::kMuon) return;
      for (Placement& place : placements(info, share)) {
        range.numel = place.numel();
        const int64_t tensor = number_of(chosen, place.global_shape);
        if (size_t(tensor) >= state.of_tensor.size()) state.of_tensor.resize(size_t(tensor) + 1);
        state.of_tensor[size_t(tensor)].push_back(state.stretches.size());
        state.stretches.push_back({tensor, std::move(place), range});
        range.offset += range.numel;
      }
    });
    return state;
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

  const std::vector<int> ranks_;
  const std::shared_ptr<const ShardMap> map_;
  const OptimSpec spec_;
  const TuneSpec tune_;
  const DType dtype_;
  const int tp_;
  std::map<std::string, int64_t> number_of_;
  std::vector<MuonTensor> tensors_;
  // Indexed by the part of the heads, of the width, and of the experts.
  std::map<std::array<int, 3>, size_t> number_of_share_;
  std::vector<LocalState> states_;
  std::vector<size_t> state_of_rank_;
};

}  // namespace

std::shared_ptr<const MuonPlans> SharedMuonPlans::get(
    std::span<const int> ranks, function_ref<std::shared_ptr<const MuonPlans>()> make) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const MuonPlans>& plans = of_ranks_[{ranks.begin(), ranks.end()}];
  if (!plans) plans = make();
  return plans;
}

MuonMatrices::MuonMatrices(const Groups& groups, const Recipe& recipe, const ParallelSpec& parallel,
                           const Zero& zero, const nn::Types& types, SharedMuonPlans* shared)
    : group_(zero.stage() > 0 ? groups.model() : groups.products()),
      sharded_(zero.stage() > 0),
      compute_(types.compute),
      num_steps_(int(recipe.optim.muon_steps)) {
  if (group_.size() == 1) return;
  const auto make = [&] {
    auto state = std::make_shared<const State>(recipe, parallel, group_.world_ranks(), zero.map(),
                                               types.wide);
    return std::make_shared<const MuonPlans>(
        state->tensors(),
        [state](int rank, const std::optional<MatrixNumber>& only, std::vector<Holding>& list) {
          state->append(rank, only, list);
        },
        group_.size(), parallel.muon);
  };
  plans_ = shared ? shared->get(group_.world_ranks(), make) : make();
}

int MuonMatrices::number_of(int world_rank) const {
  if (!sharded_) return group_.rank();  // as in the group of its own that the rank has
  const auto ranks = group_.world_ranks();
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  ASHLAR_ASSERT(found != ranks.end() && *found == world_rank);
  return int(found - ranks.begin());
}

std::unique_ptr<optim::Matrices> MuonMatrices::make(
    Allocator& allocator, comm::Group& group, const std::vector<Parameter>& parameters) const {
  ASHLAR_ASSERT(group.size() == group_.size());
  if (!plans_) return std::make_unique<optim::LocalMatrices>(parameters, compute_, num_steps_);
  std::vector<Tensor> gradients;
  for (const Parameter& p : parameters)
    if (p.kind == OptimizerKind::kMuon) gradients.push_back(p.gradient);
  return std::make_unique<DistributedMatrices>(allocator, group, plans_->of(group.rank()),
                                               std::move(gradients), compute_, num_steps_);
}

}  // namespace ashlar::parallel
