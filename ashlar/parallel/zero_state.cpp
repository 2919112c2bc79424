// The state that a rank keeps under ZeRO: the ranks that share each unit, the place of its shard,
// and the parameters that the optimizer sees.
#include <algorithm>
#include <tuple>
#include <utility>

#include "ashlar/optim/optimizer.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {
namespace {

// The weight of an element in the cuts, in proportion to its state: the value, and one moment or
// two.  Each of the n tp ranks that keep an element writes the n-th part of it to checkpoints; such
// an element weighs (1 + 1/n) / 2 of another, so that neither memory nor writers are uneven.
int64_t weight_of(const nn::ParameterInfo& info, const nn::Share& share, const OptimSpec& optim,
                  DType wide) {
  constexpr int64_t kOne = 64;
  int64_t numel = 0, written = 0;
  for (const Placement& place : placements(info, share)) {
    numel += place.numel();
    written += place.numel() / place.num_copies;
  }
  std::vector<Parameter> one{parameter_of(info, wide)};
  optim::apply_spec(optim, one);
  const int64_t num_tensors = 1 + int64_t(optim::state_tensors(one[0]).size());
  return num_tensors * (kOne / 2 + kOne / 2 * written / numel);
}

}  // namespace

Zero::FamilyIndex Zero::choose_family(int64_t unit) const {
  switch (model_.flat().units.kind_of(unit)) {
    case nn::UnitKind::kHeads:
      return kHeads;
    case nn::UnitKind::kWidths:
      return kWidths;
    case nn::UnitKind::kExperts:
      return kExperts;
    case nn::UnitKind::kEmbedding:
      return kEmbedding;
    // Copies of the root are cut in one row with copies of blocks: alone, its parts on many ranks
    // would be below the least size (tensor/pieces.h), and some ranks would write none.
    case nn::UnitKind::kRoot:
      return sharded() ? kRoot : kWhole;
    case nn::UnitKind::kBlock:
      break;
  }
  return kWhole;
}

// The tensors of the units, in the order of memory, without units that are empty.
std::vector<Stretch> Zero::row_of(const OptimSpec& optim,
                                  std::span<const int64_t> unit_numel) const {
  std::vector<int64_t> unit_begin;
  int64_t total = 0;
  for (const int64_t numel : unit_numel) {
    unit_begin.push_back(total);
    total += numel;
  }
  if (total == 0) return {};
  const nn::ModelWeights& weights = model_.weights();
  std::vector<Stretch> row;
  size_t next = 0;
  weights.for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
    if (!info.is_trained()) return;
    const nn::FlatRange& at = model_.flat().ranges[next++];
    if (unit_numel[size_t(at.unit)] == 0 || at.numel == 0) return;
    const int64_t begin = unit_begin[size_t(at.unit)] + at.offset;
    row.push_back({begin, begin + at.numel, local_shape(info, weights.share), 0,
                   weight_of(info, weights.share, optim, model_.types().wide)});
  });
  std::sort(row.begin(), row.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  return row;
}

std::shared_ptr<const ShardMap> Zero::make_map(const Mesh& mesh, const ParallelSpec& spec,
                                               const OptimSpec& optim) const {
  std::vector<ShardMap::Family> families;
  for (size_t index = 0; index < kNumFamilies; ++index)
    families.push_back(make_family(spec, optim, FamilyIndex(index)));
  std::vector<size_t> family_of_unit;
  for (int64_t unit = 0; unit < model_.num_units(); ++unit)
    family_of_unit.push_back(choose_family(unit));
  return std::make_shared<ShardMap>(mesh, stage_, std::move(families), std::move(family_of_unit));
}

ShardMap::Family Zero::make_family(const ParallelSpec& spec, const OptimSpec& optim,
                                   FamilyIndex index) const {
  ASHLAR_ASSERT(spec.bucket_bytes != kAutoBucketBytes);
  std::vector<int64_t> numel = model_.flat().unit_numel;
  for (size_t u = 0; u < numel.size(); ++u)
    if (choose_family(int64_t(u)) != index) numel[u] = 0;
  const int64_t width = size_of(model_.types().wide);
  const std::vector<Stretch> row = row_of(optim, numel);
  return {Shards(std::move(numel), row, families_[index]->size(), spec.zero_layout,
                 std::max<int64_t>(1, spec.bucket_bytes / width), Arena::kAlign / width),
          index == kExperts  ? int(spec.ep)
          : index == kHeads  ? num_head_shares(spec, model_.spec())
          : index == kWidths ? int(spec.tsp)
                             : 1,
          index == kExperts};
}

kernels::Cost Zero::gather_cost(int world_rank) const {
  kernels::Cost cost;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].num_gathers == 0) continue;
    const DType gathered = model_.unit_weights(int64_t(u)).dtype;
    const int64_t width = size_of(model_.types().wide) + size_of(gathered);
    for (const Range& range : map_->kept(int64_t(u), world_rank))
      cost.bytes += units_[u].num_gathers * range.size() * width;
  }
  return cost;
}

// The ranges of each unit that a rank keeps, and the number of elements of blocks in them.
std::pair<std::vector<Zero::Kept>, int64_t> Zero::kept_by(int world_rank) const {
  std::vector<Kept> units(units_.size());
  int64_t numel = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    units[u].ranges = map_->kept(int64_t(u), world_rank);
    if (is_root(int64_t(u))) continue;
    for (const Range& range : units[u].ranges) {
      units[u].begins.push_back(numel);
      numel += range.size();
    }
  }
  return {std::move(units), numel};
}

Zero::Shard Zero::allocate_shard(Allocator& allocator, int64_t numel) const {
  const DType wide = model_.types().wide;
  Shard shard;
  shard.weights = make_tensor(allocator, wide, {numel}, Tag::kWeights);
  if (stage_ >= 2) shard.gradients = make_tensor(allocator, wide, {numel}, Tag::kGradients);
  return shard;
}

// Range number `range` of those that a rank keeps of a unit.
Tensor Zero::kept_weights(int64_t unit, const Kept& kept, size_t range, const Shard& shard) const {
  const Range& r = kept.ranges[range];
  if (is_root(unit)) return part(model_.unit_weights(unit), r);
  return shard.weights.tensor.slice(kept.begins[range], kept.begins[range] + r.size());
}

Tensor Zero::kept_gradients(int64_t unit, const Kept& kept, size_t range,
                            const Shard& shard) const {
  const Range& r = kept.ranges[range];
  if (is_root(unit) || stage_ < 2) return part(model_.unit_gradients(unit), r);
  return shard.gradients.tensor.slice(kept.begins[range], kept.begins[range] + r.size());
}

std::vector<Zero::Placed> Zero::list_placed() const {
  std::vector<Placed> list;
  size_t next = 0;
  const nn::Share& share = model_.weights().share;
  model_.weights().for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
    if (!info.is_trained()) return;
    nn::FlatRange at = model_.flat().ranges[next++];
    for (Placement& place : placements(info, share)) {
      at.numel = place.numel();
      list.push_back({&info, std::move(place), at});
      at.offset += at.numel;
    }
  });
  ASHLAR_ASSERT(next == model_.flat().ranges.size());
  return list;
}

std::vector<Parameter> Zero::parameters_of(
    int world_rank, const std::vector<Kept>& units, const Shard& shard,
    function_ref<void(const nn::ParameterInfo&)> each) const {
  std::vector<Parameter> list;
  for (const Placed& placed : placed_) {
    const int64_t unit = placed.at.unit;
    const Range all{placed.at.offset, placed.at.offset + placed.at.numel};
    const auto add = [&](const Range& range, const Tensor& value, const Tensor& gradient) {
      list.push_back(parameter_at(placed, world_rank, range, value, gradient));
      each(*placed.info);
    };
    if (!sharded()) {
      add(all, part(model_.unit_weights(unit), all), part(model_.unit_gradients(unit), all));
      continue;
    }
    const Kept& kept = units[size_t(unit)];
    const auto before = [&](const Range& range, int64_t at) { return range.end <= at; };
    const auto first = std::lower_bound(kept.ranges.begin(), kept.ranges.end(), all.begin, before);
    for (auto i = size_t(first - kept.ranges.begin()); i < kept.ranges.size(); ++i) {
      const Range &range = kept.ranges[i], mine = intersect(range, all);
      if (range.begin >= all.end) break;
      if (mine.empty()) continue;
      const Range in_kept{mine.begin - range.begin, mine.end - range.begin};
      add(mine, part(kept_weights(unit, kept, i, shard), in_kept),
          part(kept_gradients(unit, kept, i, shard), in_kept));
    }
  }
  return list;
}

Zero::OfRank Zero::of_rank(Allocator& allocator, int world_rank) const {
  OfRank rank;
  if (sharded()) {
    int64_t numel = 0;
    std::tie(rank.kept, numel) = kept_by(world_rank);
    rank.shard = allocate_shard(allocator, numel);
  }
  rank.parameters =
      parameters_of(world_rank, rank.kept, rank.shard, [](const nn::ParameterInfo&) {});
  return rank;
}

void Zero::list_packed_rows(const kernels::Context& ctx) {
  packed_rows_.resize(parameters_.size());
  if (sharded()) return;
  size_t range = 0, next = 0;  // of the flat layout's ranges and of parameters_
  for (const nn::Stored& stored : model_.weights().tensors) {
    if (!stored.is_trained()) continue;
    const kernels::Operand& operand = stored.weight->operand;
    const size_t first = next;
    bool packs = stored.is_operand() && stored.is_packed;
    int64_t numel = 0;  // of the parameters so far
    for (size_t i = 0; i < stored.logical.size(); ++i) {
      if (stored.rows[i] == stored.rows[i + 1]) continue;
      for (const int64_t end = numel + model_.flat().ranges[range++].numel; numel < end; ++next) {
        const int64_t count = parameters_[next].value.numel();
        packs = packs && numel % operand.k() == 0;
        if (packs) packed_rows_[next] = {&operand, numel / operand.k()};
        packs = packs && packs_in_update(ctx, packed_rows_[next], count);
        numel += count;
      }
    }
    if (packs)
      packed_in_updates_.push_back(&operand);
    else
      for (size_t i = first; i < next; ++i) packed_rows_[i] = {};
  }
  ASHLAR_ASSERT(next == parameters_.size());
}

Parameter Zero::parameter_at(const Placed& placed, int world_rank, const Range& range,
                             const Tensor& value, const Tensor& gradient) const {
  const Placement& place = placed.place;
  const int64_t unit = placed.at.unit;
  Parameter p = parameter_of(*placed.info, model_.types().wide);
  p.boxes = place.boxes;
  p.local_shape = place.local_shape;
  p.begin = range.begin - placed.at.offset;
  p.end = range.end - placed.at.offset;
  p.value = value;
  p.gradient = gradient;
  // Without shards every rank of the family keeps a copy.
  const int data_copies = sharded() ? 1 : ranks_of(unit).size();
  p.copy = place.copy * data_copies + (sharded() ? 0 : map_->number_of(unit, world_rank));
  p.num_copies = place.num_copies * data_copies;
  p.keepers = int(index_of(unit));
  return p;
}

}  // namespace ashlar::parallel
