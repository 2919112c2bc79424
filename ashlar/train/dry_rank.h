// One rank of a mesh in a dry run: the real trainer on the meta device, in a world that only
// counts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/train/kernel_call.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

using KernelCosts = std::map<std::string, kernels::Cost, std::less<>>;    // by kernel
void add(KernelCosts& sum, const KernelCosts& costs, int64_t times = 1);  // times: may be negative
kernels::Cost total(const KernelCosts& costs);
void add_kernel(KernelCosts& sum, const Trace& trace, const TraceEvent& kernel);

// The traffic of a rank in one of its groups.
struct GroupTraffic {
  std::string group;  // "tp"
  int size = 1;       // ranks of the group
  comm::TrafficRow row;
  bool operator==(const GroupTraffic&) const = default;
};

class DryRank {
 public:
  // Without step_memory the memory of a step is counted, and memory() does not include it.
  // muon_plans: of all ranks of the mesh that this process plans.  on: see Trainer.
  DryRank(const Recipe& recipe, DType compute, int num_ranks, int rank, Threads& threads,
          std::optional<StepMemory> step_memory = {},
          parallel::SharedMuonPlans* muon_plans = nullptr, const ComputeDevice& on = {});
  DryRank(const DryRank&) = delete;

  // Runs a step as in the middle of a run, where the gathers of updated weights are in flight.
  void step();
  // Where a step works on the rank's own part of the state (rank_update.h), as numbers of events.
  struct OwnWork {
    size_t norm_begin = 0, update_begin = 0;
    std::vector<parallel::Zero::ShardWork> shard;
  };
  // Calls `read` with the trace of a step, with all its events; nothing is added up.
  void trace_step(function_ref<void(const Trace&, const OwnWork&)> read);
  std::string traced_step();  // the file of such a trace (records/trace_file.h)
  void update();              // only the end of a step after the last backward: norm, optimizer
  // The distinct kernel calls of a step(), or of an update().
  KernelCalls calls_of_step();
  void evaluate();  // one batch

  const Trainer& trainer() const { return trainer_; }
  MemoryCounts memory() const { return allocator_.counts(); }
  StepMemory step_memory() const { return trainer_.peak_memory(); }
  // The place where the workspace reached its peak first: "backward of block 7".
  const std::string& workspace_peak() const { return workspace_peak_; }
  // The cost and traffic of the last step() or update(), from the events of its trace.
  const KernelCosts& costs() const { return costs_; }
  // The same for another rank that differs in the place of its shard only: it gathers as often, but
  // copies other amounts before each gather.
  KernelCosts costs_of(int rank) const;
  KernelCosts costs_without_gathers() const;
  std::vector<GroupTraffic> traffic() const;
  // The number of these events.
  TraceRoom num_events() const { return num_events_; }

 private:
  void begin();
  void run_step(function_ref<void()> after_micro_batch, OwnWork* own = nullptr);
  void drain();
  void end();
  KernelCosts with_more_copied(int64_t bytes) const;
  Allocator allocator_;
  comm::RecordingWorld world_;
  Trace& trace_;
  Trainer trainer_;
  const int64_t tokens_;  // of a step, of all ranks
  std::vector<int32_t> ids_;
  kernels::Sequence sequence_;
  bool evaluating_ = false;
  std::string workspace_peak_ = "start";
  KernelCosts costs_;
  KernelCalls* calls_ = nullptr;  // null: only added up
  struct Moved {
    int64_t launches = 0, sent_bytes = 0, received_bytes = 0;
  };
  // By group, op and label, which are texts of the trace.
  std::map<std::tuple<std::string, comm::Op, std::string_view>, Moved> traffic_;
  TraceRoom num_events_;
};

}  // namespace ashlar::train
