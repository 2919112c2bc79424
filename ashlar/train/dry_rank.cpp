#include "ashlar/train/dry_rank.h"

#include <fmt/format.h>

#include <algorithm>

namespace ashlar::train {
namespace {

std::string text_of(const kernels::Phase& phase, bool evaluating) {
  return fmt::format("{}{}{}", evaluating ? "evaluation: " : "", phase.name,
                     phase.layer < 0 ? "" : fmt::format(" of block {}", phase.layer));
}

}  // namespace

void add(Costs& sum, const Costs& costs, int64_t times) {
  for (const auto& [op, cost] : costs) {
    sum[op].flop += times * cost.flop;
    sum[op].bytes += times * cost.bytes;
  }
}

kernels::Cost total(const Costs& costs) {
  kernels::Cost sum;
  for (const auto& [op, cost] : costs) sum.flop += cost.flop, sum.bytes += cost.bytes;
  return sum;
}

std::vector<GroupTraffic> traffic_of(const Trainer& trainer) {
  std::vector<GroupTraffic> list;
  for (const comm::Group* group : trainer.model().all_groups())
    for (comm::TrafficRow& row : group->traffic())
      list.push_back({group->name(), group->size(), std::move(row)});
  return list;
}

std::vector<GroupTraffic> traffic_since(const std::vector<GroupTraffic>& before,
                                        std::vector<GroupTraffic> now) {
  for (GroupTraffic& t : now)
    for (const GroupTraffic& b : before)
      if (b.group == t.group && b.row.op == t.row.op && b.row.label == t.row.label) {
        t.row.launches -= b.row.launches;
        t.row.sent_bytes -= b.row.sent_bytes;
        t.row.received_bytes -= b.row.received_bytes;
      }
  std::erase_if(now, [](const GroupTraffic& t) { return t.row.launches == 0; });
  return now;
}

DryRank::DryRank(const Recipe& recipe, DType compute, int num_ranks, int rank, Threads& threads,
                 std::optional<int64_t> workspace_bytes)
    : world_(rank, num_ranks, {}, allocator_),
      trainer_(recipe, compute, allocator_, threads, world_.group(), workspace_bytes, &recorder_),
      ids_(size_t(recipe.train.micro_batch * recipe.data.sequence_length), 0),
      sequence_(kernels::Sequence::rows(recipe.train.micro_batch, recipe.data.sequence_length)) {
  trainer_.context().workspace->watch_peak(
      [this] { workspace_peak_ = text_of(recorder_.phase, evaluating_); });
}

// Steps of many micro-batches would keep long lists.
void DryRank::drain() {
  for (const kernels::Record& record : recorder_.records) {
    const auto found = costs_.find(record.op);
    kernels::Cost& cost = found != costs_.end() ? found->second : costs_[std::string(record.op)];
    cost.flop += record.cost.flop;
    cost.bytes += record.cost.bytes;
  }
  recorder_.records.clear();
}

void DryRank::step() {
  trainer_.weights_changed();
  recorder_.records.clear();
  costs_.clear();
  const std::vector<GroupTraffic> before = traffic_of(trainer_);
  trainer_.begin_step(0);
  for (int64_t i = 0; i < trainer_.model().micro_batches_per_step(); ++i) {
    trainer_.accumulate({ids_, ids_, sequence_.segments()});
    drain();
  }
  trainer_.reduce();
  trainer_.apply(trainer_.measure());
  drain();
  traffic_ = traffic_since(before, traffic_of(trainer_));
}

void DryRank::update() {
  recorder_.records.clear();
  costs_.clear();
  const std::vector<GroupTraffic> before = traffic_of(trainer_);
  trainer_.apply(trainer_.measure());
  drain();
  traffic_ = traffic_since(before, traffic_of(trainer_));
}

void DryRank::evaluate() {
  evaluating_ = true;
  trainer_.evaluate({ids_, ids_, sequence_.segments()});
  evaluating_ = false;
  recorder_.records.clear();
}

}  // namespace ashlar::train
