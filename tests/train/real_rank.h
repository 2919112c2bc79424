// A rank that takes steps of the real trainer, on a device or on meta, and its traffic by the
// counters of its groups.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/train/plan.h"

namespace ashlar::train::testing_support {

inline const std::string kTiny = ASHLAR_FIXTURES "/recipes/tiny.toml";
inline const std::string kNano = ASHLAR_FIXTURES "/../../recipes/zaya1-nano.toml";
inline const std::string kLlamaNano = ASHLAR_FIXTURES "/../../recipes/llama-nano.toml";

using Overrides = std::vector<std::string>;

inline Recipe recipe_with(const Overrides& overrides) {
  Overrides all = {"train.micro_batch=1", "train.global_batch=8", "data.num_streams=8",
                   "data.sequence_length=48", "train.threads=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(kTiny, all);
}

// The traffic of the trainer so far, in groups of one rank too, which cost no bytes.
inline std::vector<GroupTraffic> traffic_of(const Trainer& trainer) {
  std::vector<GroupTraffic> list;
  for (const comm::Group* group : trainer.model().all_groups())
    for (comm::TrafficRow& row : group->traffic())
      list.push_back({group->name(), group->size(), std::move(row)});
  return list;
}

inline std::vector<GroupTraffic> traffic_since(const std::vector<GroupTraffic>& before,
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

class RealRank {
 public:
  RealRank(const Recipe& recipe, DType compute, comm::Group& ranks, Allocator& allocator,
           std::optional<StepMemory> step_memory)
      : threads_(1),
        allocator_(allocator),
        trainer_(recipe, compute, allocator, threads_, ranks, step_memory),
        trace_(ranks.trace()),
        num_rows_(recipe.train.micro_batch),
        length_(recipe.data.sequence_length) {
    for (int64_t i = 0; i < num_rows_ * length_; ++i)
      ids_.push_back(int32_t((i * 7919 + 13) % recipe.model.vocab_size));
    cut_rows(2);
    trainer_.context().meta() ? trainer_.weights_changed() : trainer_.initialize();
  }
  // Every row into so many documents, which end where no rank's part does.
  void cut_rows(int64_t num_documents) {
    constexpr int64_t kShort = 19;
    segments_.clear();
    for (int64_t row = 0; row < num_rows_; ++row)
      for (int64_t i = 0; i < num_documents; ++i) {
        const int64_t begin = i * kShort, end = i + 1 < num_documents ? begin + kShort : length_;
        segments_.push_back({row * length_ + begin, end - begin, 0, row * num_documents + i});
      }
  }
  void step(int64_t number) {
    batches_.assign(size_t(trainer_.model().micro_batches_per_step()), batch());
    trainer_.run(number, batches_);
    trainer_.reduce();
    trainer_.apply(trainer_.measure());
    // Nothing of the step is under way any more.
    trainer_.model().groups().world().barrier("between steps").wait();
  }
  // The beginning of a step, as far as `ended` lets it come.
  void run(int64_t number, function_ref<void(int64_t)> ended) {
    batches_.assign(size_t(trainer_.model().micro_batches_per_step()), batch());
    trainer_.run(number, batches_, ended);
  }
  void skip() { trainer_.skip(); }
  // From here on.  step: what a step of a dry run takes; these have other documents.
  void record(const TraceRoom& step, int64_t num_steps = 1) {
    const int64_t times = 2 * num_steps;
    trace_.start(TraceRoom{times * step.events, times * step.lane_events,
                           times * (step.messages + 100), times * step.dims});
  }
  void stop_recording() { trace_.stop(); }
  void evaluate() { trainer_.evaluate(batch()); }
  MemoryCounts memory() const { return allocator_.counts(); }
  const Trainer& trainer() const { return trainer_; }
  const Trace& trace() const { return trace_; }
  // The sum over the recorded events.
  KernelCosts costs() const {
    KernelCosts sums;
    for (const TraceEvent& e : trace_.events())
      if (e.kind == TraceEvent::Kind::kKernel)
        add(sums, {{std::string(trace_.text(e.name)), {e.flop, e.bytes}}});
    return sums;
  }

 private:
  MicroBatch batch() const { return {ids_, ids_, segments_}; }
  Threads threads_;
  Allocator& allocator_;
  Trainer trainer_;
  Trace& trace_;
  const int64_t num_rows_, length_;
  std::vector<int32_t> ids_;
  std::vector<Segment> segments_;
  std::vector<MicroBatch> batches_;
};

using Body = std::function<void(comm::Group& ranks, Allocator& allocator)>;

// Every rank with an allocator of its own, which counts its staging memory too.
inline void on_ranks(int num_ranks, const Body& body) {
  std::vector<std::unique_ptr<Allocator>> allocators;
  for (int i = 0; i < num_ranks; ++i)
    allocators.push_back(std::make_unique<Allocator>(Device::kCpu));
  const auto allocator_of = [&](int rank) -> Allocator& { return *allocators[size_t(rank)]; };
  comm::run_ranks(num_ranks, {}, allocator_of,
                  [&](comm::Group& ranks) { body(ranks, allocator_of(ranks.rank())); });
}

}  // namespace ashlar::train::testing_support
