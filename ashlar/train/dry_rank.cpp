#include "ashlar/train/dry_rank.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/train/records/trace_file.h"

namespace ashlar::train {
namespace {

std::string text_of_place(const Trace& trace, bool evaluating) {
  const TracePlace& place = trace.place();
  return fmt::format("{}{}{}", evaluating ? "evaluation: " : "", trace.phase(place),
                     place.block < 0 ? "" : fmt::format(" of block {}", place.block));
}

}  // namespace

void add(KernelCosts& sum, const KernelCosts& costs, int64_t times) {
  for (const auto& [op, cost] : costs) {
    sum[op].flop += times * cost.flop;
    sum[op].bytes += times * cost.bytes;
  }
}

kernels::Cost total(const KernelCosts& costs) {
  kernels::Cost sum;
  for (const auto& [op, cost] : costs) sum.flop += cost.flop, sum.bytes += cost.bytes;
  return sum;
}

void add_kernel(KernelCosts& sum, const Trace& trace, const TraceEvent& kernel) {
  const std::string_view name = trace.text(kernel.name);
  const auto found = sum.find(name);
  kernels::Cost& cost = found != sum.end() ? found->second : sum[std::string(name)];
  cost.flop += kernel.flop;
  cost.bytes += kernel.bytes;
}

DryRank::DryRank(const Recipe& recipe, DType compute, int num_ranks, int rank, Threads& threads,
                 std::optional<StepMemory> step_memory, parallel::SharedMuonPlans* muon_plans,
                 const ComputeDevice& on)
    : allocator_(Device::kMeta, INT64_MAX, on.align()),
      world_(rank, num_ranks, {}, allocator_),
      trace_(world_.group().trace()),
      trainer_(recipe, compute, allocator_, threads, world_.group(), step_memory, nullptr,
               muon_plans, on),
      tokens_(recipe.train.global_batch * recipe.data.sequence_length),
      ids_(size_t(recipe.train.micro_batch * recipe.data.sequence_length), 0),
      sequence_(kernels::Sequence::rows(recipe.train.micro_batch, recipe.data.sequence_length)) {
  trainer_.context().workspace->watch_peak(
      [this] { workspace_peak_ = text_of_place(trace_, evaluating_); });
}

void DryRank::begin() {
  costs_.clear();
  traffic_.clear();
  num_events_ = {};
  trace_.start();
}

// Takes the events off the trace, since steps of many micro-batches would keep long lists.
void DryRank::drain() {
  std::vector<size_t> num_ended(size_t(trace_.num_lanes()), 0);
  for (const TraceEvent& event : trace_.events()) {
    const std::string_view name = trace_.text(event.name);
    if (event.kind == TraceEvent::Kind::kKernel) {
      add_kernel(costs_, trace_, event);
      if (calls_) ++(*calls_)[call_of(trace_, event)];
    } else if (event.kind == TraceEvent::Kind::kPost) {
      Moved& moved =
          traffic_[{trace_.group(event.group).name, comm::op_of(name), trace_.text(event.label)}];
      ++moved.launches;
      if (event.lane < 0) continue;  // a group of one rank
      // Operations of a recording world run in the call, so a lane has them in the order of its
      // posts.
      const TraceEvent& ended =
          trace_.lane_events(event.lane)[2 * num_ended[size_t(event.lane)]++ + 1];
      ASHLAR_ASSERT(ended.kind == TraceEvent::Kind::kEnded && ended.ticket == event.ticket);
      moved.sent_bytes += ended.bytes;
      moved.received_bytes += ended.received_bytes;
    }
  }
  const TraceRoom size = trace_.size();
  num_events_.events += size.events;
  num_events_.lane_events += size.lane_events;
  num_events_.messages += size.messages;
  num_events_.dims += size.dims;
  trace_.clear();
}

void DryRank::end() {
  drain();
  trace_.stop();
}

KernelCosts DryRank::costs_of(int rank) const {
  const parallel::RankModel& model = trainer_.model();
  const int here = model.groups().rank();
  return with_more_copied(model.gather_cost(rank).bytes - model.gather_cost(here).bytes);
}

KernelCosts DryRank::costs_without_gathers() const {
  const parallel::RankModel& model = trainer_.model();
  return with_more_copied(-model.gather_cost(model.groups().rank()).bytes);
}

KernelCosts DryRank::with_more_copied(int64_t bytes) const {
  KernelCosts costs = costs_;
  if (bytes != 0) costs["copy"].bytes += bytes;
  return costs;
}

std::vector<GroupTraffic> DryRank::traffic() const {
  std::vector<GroupTraffic> list;
  for (const comm::Group* group : trainer_.model().all_groups())
    for (const auto& [key, moved] : traffic_)
      if (const auto& [name, op, label] = key; name == group->name())
        list.push_back(
            {name,
             group->size(),
             {op, std::string(label), moved.launches, moved.sent_bytes, moved.received_bytes}});
  return list;
}

void DryRank::run_step(function_ref<void()> after_micro_batch, OwnWork* own) {
  trainer_.weights_changed(/*by_updates=*/true);
  begin();
  if (own) trainer_.list_shard_works(&own->shard);
  const MicroBatch batch{ids_, ids_, sequence_.segments()};
  const std::vector batches(size_t(trainer_.model().micro_batches_per_step()), batch);
  trainer_.run(0, batches, [&](int64_t) { after_micro_batch(); });
  trainer_.reduce();
  if (own) own->norm_begin = trace_.events().size();
  const StepStats stats = trainer_.measure();
  if (own) own->update_begin = trace_.events().size();
  trainer_.apply(stats);
  trainer_.list_shard_works(nullptr);
}

void DryRank::step() {
  run_step([this] { drain(); });
  end();
}

void DryRank::trace_step(function_ref<void(const Trace&, const OwnWork&)> read) {
  OwnWork own;
  run_step([] {}, &own);
  trace_.stop();
  read(trace_, own);
  trace_.clear();
}

std::string DryRank::traced_step() {
  TracedStep step{.number = 1};
  step.before_s = step.start_s = Trace::now_s();
  std::string text;
  trace_step([&](const Trace& trace, const OwnWork&) {
    step.end_s = Trace::now_s();
    const comm::Group& ranks = world_.group();
    const DeviceSpec* gpu = trainer_.context().spec;
    text = to_chrome_json(trace, {.rank = ranks.rank(),
                                  .num_ranks = ranks.size(),
                                  .steps = {step},
                                  .origin_s = step.start_s,
                                  .dry = true,
                                  .tokens = tokens_,
                                  .device = gpu ? gpu->name : ""});
  });
  return text;
}

void DryRank::update() {
  begin();
  trainer_.apply(trainer_.measure());
  end();
}

KernelCalls DryRank::calls_of_step() {
  KernelCalls calls;
  calls_ = &calls;
  step();
  calls_ = nullptr;
  return calls;
}

void DryRank::evaluate() {
  evaluating_ = true;
  trainer_.evaluate({ids_, ids_, sequence_.segments()});
  evaluating_ = false;
}

}  // namespace ashlar::train
