// How it works.  Each unit is in one state of its weights and one of its gradients.
//
//   weights     kept -> gathering -> whole -> ready -> kept
//     kept        a rank has its shard; where blocks stand in slots, the slot is another block's
//     gathering   start_gather has posted the collectives (Unit::gathering)
//     whole       bring has waited for them; without shards a unit is always whole
//     ready       packed, so that kernels may read it (Unit::ready): need brings a unit so far
//                 It ends when weights_changed, and in stage 3 when another block takes the operand
//                 slot; in fp64, which reads whole weights, when another takes the weight slot.
//   gradients   free -> being made -> reducing -> kept
//     being made  begin_gradient gave the block the slot, after what was reduced from it is kept
//     reducing    start_reduce has posted the collectives (Unit::reducing)
//     kept        finish_reduce has waited, and added the shard to gradients_ (the first
//                 micro-batch overwrites); below stage 2 gradients stay where the backward pass
//                 made them
//
//   order of a step   begin; need_root; then acquire and release around every use of the list; a
//                     backward use begins and ends the block's gradient.  The step ends by
//                     finish_gradients.
//   prefetch          after each acquire, or release where kernels read whole weights: the list is
//                     read on from there, and each of the two slots is given to the first unit
//                     that needs it.  A unit that is ready needs none, unless kernels read it
//                     there.
#include "ashlar/parallel/zero.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using Why = nn::Use::Why;

constexpr int64_t kNobody = -1;  // who holds a slot that is free

size_t slot_of(int64_t unit) {
  return size_t(unit - 1) % 2;
}

Tensor part(const Tensor& vector, const Range& range) {
  return vector.slice(range.begin, range.end);
}

}  // namespace

nn::ModelMemory model_memory(const Context& ctx, const ParallelSpec& spec, int num_data_ranks,
                             DType compute) {
  const nn::Types types = nn::Types::of(compute);
  if (num_data_ranks == 1 || spec.zero == 0) return {.slot_dtype = types.stream};
  const bool packed = operand_layout(ctx, 1, 64, 64, compute, true).forward_numel > 0;
  return {.weight_slots = packed || spec.zero == 3,
          .operand_slots = spec.zero == 3,
          .gradient_slots = spec.zero >= 2,
          .slot_dtype = packed ? types.activation : types.stream};
}

Zero::Zero(const Context& ctx, Allocator& allocator, const ParallelSpec& spec, comm::Group& data,
           nn::Model& model)
    : gather_ctx_{.device = ctx.device, .threads = ctx.threads},
      data_(data),
      model_(model),
      stage_(data.size() == 1 ? 0 : int(spec.zero)),
      overlap_(spec.overlap),
      packed_(operand_layout(ctx, 1, 64, 64, model.types().compute, true).forward_numel > 0),
      shards_(model.flat().unit_numel, data.size(), spec.zero_layout,
              std::max<int64_t>(1, spec.bucket_bytes / size_of(model.types().stream)),
              Arena::kAlign / size_of(model.types().stream)),
      units_(size_t(model.num_units())),
      counts_(size_t(data.size())) {
  for (size_t u = 0; u < units_.size(); ++u) {
    units_[u].gather.reserve(size_t(shards_.num_buckets(int64_t(u))));
    units_[u].reduce.reserve(size_t(shards_.num_buckets(int64_t(u))));
  }
  if (sharded()) lay_out_shards(allocator);
  list_parameters();
}

void Zero::lay_out_shards(Allocator& allocator) {
  int64_t numel = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    unit.kept = shards_.kept(int64_t(u), data_.rank());
    if (u == 0) continue;
    for (const Range& range : unit.kept) {
      unit.kept_at.push_back(numel);
      numel += range.size();
    }
  }
  const DType stream = model_.types().stream;
  weights_ = make_tensor(allocator, stream, {numel}, Tag::kWeights);
  if (stage_ >= 2) gradients_ = make_tensor(allocator, stream, {numel}, Tag::kGradients);
}

// Range number `range` of a unit, as this rank keeps it.
Tensor Zero::kept_weights(int64_t unit, size_t range) const {
  const Unit& u = units_[size_t(unit)];
  if (unit == 0) return part(model_.unit_weights(0), u.kept[range]);
  return weights_.tensor.slice(u.kept_at[range], u.kept_at[range] + u.kept[range].size());
}

Tensor Zero::kept_gradients(int64_t unit, size_t range) const {
  const Unit& u = units_[size_t(unit)];
  if (unit == 0 || stage_ < 2) return part(model_.unit_gradients(unit), u.kept[range]);
  return gradients_.tensor.slice(u.kept_at[range], u.kept_at[range] + u.kept[range].size());
}

void Zero::list_parameters() {
  size_t next = 0;
  const nn::Share& share = model_.weights().share;
  model_.weights().for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
    if (info.buffer) return;
    nn::FlatRange at = model_.flat().ranges[next++];
    for (const Placement& place : placements(info, share)) {
      at.numel = place.numel();
      list_placed(info, place, at);
      at.offset += at.numel;
    }
  });
  ASHLAR_ASSERT(next == model_.flat().ranges.size());
}

// `at`: where the placed elements lie.
void Zero::list_placed(const nn::ParameterInfo& info, const Placement& place,
                       const nn::FlatRange& at) {
  const Range all{at.offset, at.offset + at.numel};
  if (!sharded())
    return add_parameter(info, place, at, all, part(model_.unit_weights(at.unit), all),
                         part(model_.unit_gradients(at.unit), all));
  const Unit& unit = units_[size_t(at.unit)];
  for (size_t i = 0; i < unit.kept.size(); ++i) {
    const Range mine = intersect(unit.kept[i], all);
    if (mine.empty()) continue;
    const Range in_kept{mine.begin - unit.kept[i].begin, mine.end - unit.kept[i].begin};
    add_parameter(info, place, at, mine, part(kept_weights(at.unit, i), in_kept),
                  part(kept_gradients(at.unit, i), in_kept));
  }
}

void Zero::add_parameter(const nn::ParameterInfo& info, const Placement& place,
                         const nn::FlatRange& at, const Range& range, const Tensor& value,
                         const Tensor& gradient) {
  Parameter& p = parameters_.emplace_back(parameter_of(info, model_.types().stream));
  p.boxes = place.boxes;
  p.begin = range.begin - at.offset;
  p.end = range.end - at.offset;
  p.value = value;
  p.gradient = gradient;
  // Without shards every data rank keeps a copy.
  const int data_copies = sharded() ? 1 : data_.size();
  p.copy = place.copy * data_copies + (sharded() ? 0 : data_.rank());
  p.num_copies = place.num_copies * data_copies;
  infos_.push_back(info);
}

std::span<const int64_t> Zero::counts_of(int64_t unit, int64_t bucket) {
  for (int rank = 0; rank < data_.size(); ++rank)
    counts_[size_t(rank)] = shards_.piece(unit, bucket, rank).size();
  return counts_;
}

void Zero::begin(std::span<const nn::Use> uses) {
  ASHLAR_ASSERT(next_ == uses_.size());  // all uses of the last list
  uses_ = uses;
  next_ = 0;
  for (Unit& unit : units_) unit.made = unit.to_make = 0;
  for (const nn::Use& use : uses)
    if (use.why == Why::kBackward) ++units_[size_t(use.unit)].to_make;
  prefetch();
}

// --- weights ---

void Zero::weights_changed() {
  for (size_t u = 0; u < units_.size(); ++u) finish_gather(int64_t(u));
  for (Unit& unit : units_) unit.ready = false;
  if (!sharded()) return;
  operand_slot_ = {kNobody, kNobody};
  if (overlap_) start_gather(0);
  for (const int64_t unit : {1, 2}) prefetch(unit);  // whatever comes begins with a forward pass
}

void Zero::bring(const Context& ctx, int64_t unit) {
  Unit& u = units_[size_t(unit)];
  if (sharded()) {
    if (!u.gathering) start_gather(unit);
    finish_gather(unit);
  }
  if (stage_ == 3 && unit > 0) {
    int64_t& owner = operand_slot_[slot_of(unit)];
    if (owner != kNobody) units_[size_t(owner)].ready = false;
    owner = unit;
  }
  model_.pack(ctx, unit);
  u.ready = true;
}

void Zero::prefetch() {
  if (!sharded() || !overlap_) return;
  std::array<bool, 2> taken{};
  for (size_t i = next_; i < uses_.size() && !(taken[0] && taken[1]); ++i) {
    const int64_t unit = uses_[i].unit;
    bool& slot = taken[slot_of(unit)];
    if (slot || (packed_ && units_[size_t(unit)].ready)) continue;
    slot = true;
    prefetch(unit);
  }
}

void Zero::prefetch(int64_t unit) {
  if (!sharded() || !overlap_ || unit < 1 || unit >= model_.num_units()) return;
  const Unit& u = units_[size_t(unit)];
  if (!u.ready && !u.gathering) start_gather(unit);
}

// The unit that was gathered into the slot before is dropped.
void Zero::take_slot(int64_t unit) {
  int64_t& holder = weight_slot_[slot_of(unit)];
  if (holder != kNobody && holder != unit) {
    Unit& before = units_[size_t(holder)];
    if (before.gathering) finish_gather(holder);
    if (!packed_) before.ready = false;
  }
  holder = unit;
}

void Zero::start_gather(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  if (unit > 0 && model_.memory().weight_slots) take_slot(unit);
  const Tensor whole = model_.unit_weights(unit);
  if (unit > 0)
    for (size_t i = 0; i < u.kept.size(); ++i)
      copy(gather_ctx_, kept_weights(unit, i), part(whole, u.kept[i]));
  for (int64_t b = 0; b < shards_.num_buckets(unit); ++b)
    u.gather.push_back(data_.all_gather(part(whole, shards_.piece(unit, b, data_.rank())),
                                        part(whole, shards_.bucket(unit, b)), "weights",
                                        counts_of(unit, b)));
  u.gathering = true;
}

void Zero::finish_gather(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  for (comm::Work& work : u.gather) work.wait();
  u.gather.clear();
  u.gathering = false;
}

// --- gradients ---

void Zero::begin_gradient(const Context& ctx, int64_t unit) {
  if (stage_ < 2) return;
  int64_t& holder = gradient_slot_[slot_of(unit)];
  if (holder != kNobody) finish_reduce(ctx, holder);
  holder = unit;
}

void Zero::end_gradient(const Context& ctx, int64_t unit) {
  Unit& u = units_[size_t(unit)];
  ++u.made;
  --u.to_make;
  if (data_.size() == 1 || (stage_ < 2 && u.to_make > 0)) return;
  if (!overlap_ && stage_ < 2) return;
  start_reduce(unit);
  if (!overlap_) finish_reduce(ctx, unit);
}

void Zero::start_reduce(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  const Tensor whole = model_.unit_gradients(unit);
  for (int64_t b = 0; b < shards_.num_buckets(unit); ++b) {
    const Tensor bucket = part(whole, shards_.bucket(unit, b));
    if (!sharded())
      u.reduce.push_back(data_.all_reduce(bucket, bucket, "gradients"));
    else
      u.reduce.push_back(data_.reduce_scatter(bucket,
                                              part(whole, shards_.piece(unit, b, data_.rank())),
                                              "gradients", counts_of(unit, b)));
  }
  u.reducing = true;
  u.overwrites = u.made == 1;
}

void Zero::finish_reduce(const Context& ctx, int64_t unit) {
  Unit& u = units_[size_t(unit)];
  if (!u.reducing) return;
  for (comm::Work& work : u.reduce) work.wait();
  u.reduce.clear();
  u.reducing = false;
  if (stage_ < 2 || unit == 0) return;
  const Tensor whole = model_.unit_gradients(unit);
  for (size_t i = 0; i < u.kept.size(); ++i) {
    const Tensor from = part(whole, u.kept[i]), to = kept_gradients(unit, i);
    u.overwrites ? copy(ctx, from, to) : add(ctx, from, to);
  }
}

void Zero::finish_gradients(const Context& ctx) {
  if (data_.size() == 1) return;
  if (!overlap_ && stage_ < 2)
    for (int64_t unit = model_.num_units() - 1; unit > 0; --unit) start_reduce(unit);
  start_reduce(0);
  for (int64_t unit = model_.num_units() - 1; unit >= 0; --unit) finish_reduce(ctx, unit);
  gradient_slot_ = {kNobody, kNobody};
}

// --- blocks ---

void Zero::acquire(const Context& ctx, const nn::Use& use) {
  ASHLAR_ASSERT(next_ < uses_.size() && uses_[next_] == use);
  ++next_;
  if (!units_[size_t(use.unit)].ready) bring(ctx, use.unit);
  // The slot is free, unless kernels read it.
  if (packed_) prefetch();
  if (use.why == Why::kBackward) begin_gradient(ctx, use.unit);
}

void Zero::release(const Context& ctx, const nn::Use& use) {
  if (use.why == Why::kBackward) end_gradient(ctx, use.unit);
  if (!packed_) prefetch();
}

}  // namespace ashlar::parallel
