// How it works.  Each unit is in one state of its weights and one of its gradients; the units of a
// block go through them together.
//
//   weights     kept -> gathering -> whole -> ready -> kept
//     kept        a rank has its shard; if blocks take turns in slots, another block has the slot
//     gathering   start_gather has posted the collectives (Unit::gathering)
//     whole       bring has waited for them; without shards a unit is always whole
//     ready       bring has packed it, so kernels may read it (Unit::ready).  This ends at
//                 weights_changed, and in stage 3 when another block takes the operand slot; in
//                 fp64, which reads whole weights, when another block takes the weight slot.
//   gradients   free -> being made -> reducing -> kept
//     being made  begin_gradient gave the block the slot, once the shard reduced from it was kept
//     reducing    start_reduce has posted the collectives (Unit::reducing)
//     kept        finish_reduce has waited, and added the shard to gradients_ (the first
//                 micro-batch overwrites); below stage 2 gradients stay where the backward pass
//                 made them
//
//   order of a step   begin; need_root; then acquire and release around every use of the list; a
//                     backward use begins and ends the block's gradient.  The step ends with
//                     finish_gradients.
//   prefetch          after each acquire, or after each release if kernels read whole weights:
//                     looks ahead in the list from there, and gives each of the two slots to the
//                     first unit that needs it.  A unit that is ready needs none, unless kernels
//                     read it in the slot.
#include "ashlar/parallel/zero.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ashlar/kernels/copy.h"
#include "ashlar/parallel/copy_check.h"
#include "ashlar/parallel/replay.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;

constexpr int64_t kNobody = -1;  // the block of a free slot

}  // namespace

nn::ModelMemory model_memory(const Context& ctx, const ParallelSpec& spec, int num_data_ranks,
                             DType compute) {
  const nn::Types types = nn::Types::of(compute);
  const bool packed = operand_layout(ctx, 1, 64, 64, compute, true).forward_numel > 0;
  // Products read the packed form, which is made from these bits.
  const DType frozen = packed ? types.activation : types.wide;
  if (num_data_ranks == 1 || spec.zero == 0)
    return {.slot_dtype = types.wide, .frozen_dtype = frozen};
  return {.weight_slots = packed || spec.zero == 3,
          .operand_slots = spec.zero == 3,
          .gradient_slots = spec.zero >= 2,
          .slot_dtype = packed ? types.activation : types.wide,
          .frozen_dtype = frozen};
}

Zero::Zero(const Context& ctx, Allocator& allocator, const ParallelSpec& spec,
           const OptimSpec& optim, const Groups& groups, nn::Model& model)
    : gather_ctx_{.device = ctx.device, .ops = ctx.ops, .threads = ctx.threads, .trace = ctx.trace},
      model_(model),
      stage_(groups.data().size() == 1 ? 0 : int(spec.zero)),
      overlap_(spec.overlap),
      packed_(operand_layout(ctx, 1, 64, 64, model.types().compute, true).forward_numel > 0),
      slots_are_read_(!packed_ || model.weights().share.units.has_cut_units()),
      ends_(groups.ends()),
      families_{&groups.data(),         &groups.heads_data(), &groups.cuts_data(),
                &groups.experts_data(), &groups.data(),       &groups.data()},
      map_(make_map(groups.mesh(), spec, optim)),
      kept_(size_t(model.num_units())),
      units_(size_t(model.num_units())),
      blocks_(size_t(model.spec().num_blocks())),
      counts_(size_t(groups.data().size())) {
  for (size_t u = 0; u < units_.size(); ++u) {
    units_[u].gather.reserve(size_t(shards_of(int64_t(u)).num_buckets(int64_t(u))));
    units_[u].reduce.reserve(size_t(shards_of(int64_t(u)).num_buckets(int64_t(u))));
  }
  if (sharded()) {
    int64_t numel = 0;
    std::tie(kept_, numel) = kept_by(groups.rank());
    shard_ = allocate_shard(allocator, numel);
  }
  placed_ = list_placed();
  parameters_ = parameters_of(groups.rank(), kept_, shard_,
                              [&](const nn::ParameterInfo& info) { infos_.push_back(info); });
  list_packed_rows(ctx);
}

std::pair<int64_t, int64_t> Zero::units_of(int64_t block) const {
  const nn::Units& units = model_.flat().units;
  return {units.first_of(block), units.first_of(block + 1)};
}

std::span<const int64_t> Zero::counts_of(int64_t unit, int64_t bucket) {
  const auto num_ranks = size_t(ranks_of(unit).size());
  const Shards& shards = shards_of(unit);
  for (size_t rank = 0; rank < num_ranks; ++rank)
    counts_[rank] = shards.piece(unit, bucket, int(rank)).size();
  return std::span(counts_).first(num_ranks);
}

void Zero::begin(std::span<const nn::Use> uses) {
  ASHLAR_ASSERT(next_ == uses_.size());  // all uses of the last list were acquired
  uses_ = uses;
  next_ = 0;
  for (Block& block : blocks_) block = {};
  for (Unit& unit : units_) unit.num_gathers = 0;
  for (const nn::Use& use : uses)
    if (use.makes_gradients()) ++blocks_[size_t(use.block)].to_make;
  prefetch();
}

// --- weights ---

void Zero::weights_changed(bool by_updates) {
  for (size_t u = 0; u < units_.size(); ++u) finish_gather(int64_t(u));
  for (Unit& unit : units_) unit.ready = false, unit.updated = by_updates;
  if (!sharded()) return;
  operand_slot_ = {kNobody, kNobody};
  if (overlap_)
    for (size_t u = 0; u < units_.size(); ++u)
      if (is_root(int64_t(u))) start_gather(int64_t(u));
  // Every next call begins with a forward pass of the first blocks here.
  std::array<bool, 2> taken{};
  model_.weights().for_each_block([&](const nn::Block&, int64_t block) {
    if (!std::exchange(taken[slot_of(block)], true)) prefetch(block);
  });
}

void Zero::need_root(const Context& ctx) {
  for (size_t u = 0; u < units_.size(); ++u)
    if (is_root(int64_t(u)) && !units_[u].ready) bring(ctx, int64_t(u));
}

void Zero::bring(const Context& ctx, int64_t unit) {
  Unit& u = units_[size_t(unit)];
  if (sharded()) {
    if (!u.gathering) start_gather(unit);
    finish_gather(unit);
  }
  if (copy_check_) copy_check_->add(unit, model_.unit_weights(unit));
  using Operands = std::span<const kernels::Operand* const>;
  model_.pack(ctx, unit, u.updated ? Operands(packed_in_updates_) : Operands());
  u.ready = true;
}

void Zero::bring_block(const Context& ctx, int64_t block) {
  const auto [first, end] = units_of(block);
  if (stage_ == 3) {
    int64_t& owner = operand_slot_[slot_of(block)];
    if (owner != kNobody && owner != block)
      for (auto [u, last] = units_of(owner); u < last; ++u) units_[size_t(u)].ready = false;
    owner = block;
  }
  if (sharded() && !is_gathering(block)) prefetch_now(block);
  for (int64_t unit = first; unit < end; ++unit)
    if (!units_[size_t(unit)].ready) bring(ctx, unit);
}

bool Zero::is_ready(int64_t block) const {
  const auto [first, end] = units_of(block);
  return std::all_of(units_.begin() + first, units_.begin() + end,
                     [](const Unit& unit) { return unit.ready; });
}

bool Zero::is_gathering(int64_t block) const {
  const auto [first, end] = units_of(block);
  return std::any_of(units_.begin() + first, units_.begin() + end,
                     [](const Unit& unit) { return unit.gathering; });
}

void Zero::prefetch() {
  if (!sharded() || !overlap_) return;
  std::array<bool, 2> taken{};
  for (size_t i = next_; i < uses_.size() && !(taken[0] && taken[1]); ++i) {
    const int64_t block = uses_[i].block;
    bool& slot = taken[slot_of(block)];
    if (slot || !uses_[i].reads_operands() || (!slots_are_read_ && is_ready(block))) continue;
    slot = true;
    prefetch(block);
  }
}

void Zero::prefetch(int64_t block) {
  if (sharded() && overlap_ && !is_ready(block) && !is_gathering(block)) prefetch_now(block);
}

void Zero::prefetch_now(int64_t block) {
  if (model_.memory().weight_slots) take_slot(block);
  for (auto [unit, end] = units_of(block); unit < end; ++unit)
    if (!units_[size_t(unit)].ready) start_gather(unit);
}

// Drops the block that was gathered into the slot before.
void Zero::take_slot(int64_t block) {
  int64_t& holder = weight_slot_[slot_of(block)];
  if (holder != kNobody && holder != block)
    for (auto [unit, end] = units_of(holder); unit < end; ++unit) {
      finish_gather(unit);
      if (!stays_packed(unit)) units_[size_t(unit)].ready = false;
    }
  holder = block;
}

void Zero::start_gather(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  const Shards& shards = shards_of(unit);
  comm::Group& ranks = ranks_of(unit);
  const Tensor whole = model_.unit_weights(unit);
  if (!is_root(unit)) copy_kept(unit);
  for (int64_t b = 0; b < shards.num_buckets(unit) && ranks.size() > 1; ++b)
    u.gather.push_back(ranks.all_gather(part(whole, shards.piece(unit, b, ranks.rank())),
                                        part(whole, shards.bucket(unit, b)), "weights",
                                        counts_of(unit, b)));
  u.gathering = true;
}

// Copies, and rounds, this rank's part of a block's unit to its place there.  A gather begins long
// before its block: meanwhile the place in the step is the block that it is for.
void Zero::copy_kept(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  ++u.num_gathers;  // gather_cost counts these copies again
  Trace* const trace = gather_ctx_.trace;
  const TracePlace before = trace ? trace->place() : TracePlace{};
  TracePlace place = before;
  place.block = int16_t(model_.flat().units.block_of(unit));
  place.branch = TracePlace::Branch::kNone;
  if (trace) trace->enter(place);
  work_on(gather_ctx_, ShardWork::Kind::kGather, unit);
  if (trace) trace->enter(before);
}

void Zero::finish_gather(int64_t unit) {
  Unit& u = units_[size_t(unit)];
  for (comm::Work& work : u.gather) work.wait();
  u.gather.clear();
  u.gathering = false;
}

// --- the shard ---

void Zero::work_on(const Context& ctx, ShardWork::Kind kind, int64_t unit) {
  const auto num_events = [&] { return works_ ? ctx.trace->events().size() : 0; };
  const size_t begin = num_events();
  work_on(ctx, kind, unit, kept_[size_t(unit)], shard_);
  if (works_) works_->push_back({kind, unit, ctx.trace->place(), begin, num_events()});
}

void Zero::work_on(const Context& ctx, ShardWork::Kind kind, int64_t unit, const Kept& kept,
                   const Shard& shard) const {
  const bool gathers = kind == ShardWork::Kind::kGather;
  const Tensor whole = gathers ? model_.unit_weights(unit) : model_.unit_gradients(unit);
  for (size_t i = 0; i < kept.ranges.size(); ++i) {
    const Tensor there = part(whole, kept.ranges[i]);
    if (gathers)
      copy(ctx, kept_weights(unit, kept, i, shard), there);
    else if (kind == ShardWork::Kind::kKeep)
      copy(ctx, there, kept_gradients(unit, kept, i, shard));
    else
      add(ctx, there, kept_gradients(unit, kept, i, shard));
  }
}

void Zero::run(const Context& ctx, const ShardWork& work, const OfRank& rank) const {
  ASHLAR_ASSERT(ctx.meta());
  work_on(ctx, work.kind, work.unit, rank.kept[size_t(work.unit)], rank.shard);
}

// --- gradients ---

void Zero::begin_gradient(const Context& ctx, int64_t block) {
  if (stage_ < 2) return;
  int64_t& holder = gradient_slot_[slot_of(block)];
  if (holder != kNobody)
    for (auto [unit, end] = units_of(holder); unit < end; ++unit) finish_reduce(ctx, unit);
  holder = block;
}

void Zero::end_gradient(const Context& ctx, int64_t block) {
  Block& b = blocks_[size_t(block)];
  if (replay_ && replay_->take(block)) return;
  ++b.made;
  --b.to_make;
  if (stage_ < 2 && (b.to_make > 0 || !overlap_)) return;
  for (auto [unit, end] = units_of(block); unit < end; ++unit) {
    start_reduce(unit, b.made == 1);
    if (!overlap_) finish_reduce(ctx, unit);
  }
}

void Zero::start_reduce(int64_t unit, bool overwrites) {
  Unit& u = units_[size_t(unit)];
  const Shards& shards = shards_of(unit);
  comm::Group& ranks = ranks_of(unit);
  if (ranks.size() == 1 && !sharded()) return;
  const Tensor whole = model_.unit_gradients(unit);
  for (int64_t b = 0; b < shards.num_buckets(unit) && ranks.size() > 1; ++b) {
    const Tensor bucket = part(whole, shards.bucket(unit, b));
    if (!sharded())
      u.reduce.push_back(ranks.all_reduce(bucket, bucket, "gradients"));
    else
      u.reduce.push_back(ranks.reduce_scatter(bucket,
                                              part(whole, shards.piece(unit, b, ranks.rank())),
                                              "gradients", counts_of(unit, b)));
  }
  u.reducing = true;
  u.overwrites = overwrites;
}

void Zero::finish_reduce(const Context& ctx, int64_t unit) {
  Unit& u = units_[size_t(unit)];
  if (!u.reducing) return;
  for (comm::Work& work : u.reduce) work.wait();
  u.reduce.clear();
  u.reducing = false;
  if (stage_ < 2 || is_root(unit)) return;
  work_on(ctx, u.overwrites ? ShardWork::Kind::kKeep : ShardWork::Kind::kAdd, unit);
}

void Zero::finish_gradients(const Context& ctx) {
  const int64_t last = model_.num_units() - 1;
  if (!overlap_ && stage_ < 2)
    for (int64_t unit = last; unit >= 0; --unit)
      if (!is_root(unit)) start_reduce(unit, false);
  for (int64_t unit = 0; unit <= last; ++unit)
    if (is_root(unit)) start_reduce(unit, false);
  for (int64_t unit = last; unit >= 0; --unit) finish_reduce(ctx, unit);
  gradient_slot_ = {kNobody, kNobody};
  sum_over_ends();
}

// Both ends of a pipeline keep the same parts of the embedding, since it is a family of its own.
void Zero::sum_over_ends() {
  const int64_t unit = model_.num_units() - 1;
  if (!ends_ || model_.flat().unit_numel[size_t(unit)] == 0) return;  // or it is frozen
  const Tensor whole = model_.unit_gradients(unit);
  if (!sharded()) return ends_->all_reduce(whole, whole, "ends").wait();
  for (const Range& kept : kept_[size_t(unit)].ranges)
    ends_->all_reduce(part(whole, kept), part(whole, kept), "ends").wait();
}

// --- blocks ---

void Zero::acquire(const Context& ctx, const nn::Use& use) {
  ASHLAR_ASSERT(next_ < uses_.size() && uses_[next_] == use);
  ++next_;
  if (use.reads_operands() && !is_ready(use.block)) bring_block(ctx, use.block);
  // The slot is free, unless kernels read it.
  if (!slots_are_read_) prefetch();
  if (use.makes_gradients()) begin_gradient(ctx, use.block);
}

void Zero::release(const Context& ctx, const nn::Use& use) {
  if (use.makes_gradients()) end_gradient(ctx, use.block);
  if (slots_are_read_) prefetch();
}

}  // namespace ashlar::parallel
