// One start of the program on a run, on one of its ranks.  Its constructor, the start, is in
// run_start.cpp; its steps are in loop.cpp.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "ashlar/core/threads.h"
#include "ashlar/models/source.h"
#include "ashlar/train/data_check.h"
#include "ashlar/train/health.h"
#include "ashlar/train/loop.h"
#include "ashlar/train/peak.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/product_table.h"
#include "ashlar/train/records/traced_steps.h"
#include "ashlar/train/run_data.h"
#include "ashlar/train/run_report.h"
#include "ashlar/train/saves.h"
#include "ashlar/train/start_timing.h"
#include "ashlar/train/state.h"
#include "ashlar/train/stops.h"

namespace ashlar::train {

class Run {
 public:
  Run(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
      const RankResources& resources);
  Outcome train();
  void close();  // after train()
  void leave(const std::exception_ptr& error);

 private:
  void enter(std::string_view part) const;  // of the timing of the start, if there is one
  // The steps of the constructor, in its order.
  void accept_plan();   // memory suffices, and the run's directory can be written
  void make_trainer();  // finds init.model before, which takes no memory
  void open_data();
  void check_storage();  // room for checkpoints
  void measure_peak();
  void agree_on_inputs();
  void take_weights();      // of init.model
  void open_checkpoints();  // takes the lease of their root, finds the newest good step
  void resume();
  void read_skips();
  void begin();

  Reader reader() const;
  void begin_from_weights();
  bool finished() const { return counters_.step >= recipe_.train.steps; }
  bool is_due(int64_t period) const { return period > 0 && counters_.step % period == 0; }
  bool step();  // false: it was left undone
  void pass_step();
  bool run_micro_batches();
  StepStats measure();
  StepVerdict judge(const StepStats& stats);
  void update(const StepStats& stats, const StepVerdict& verdict);
  void count_step();
  void report_skip(const StepStats& stats, const StepVerdict& verdict);
  StepRow row_of(const StepStats& stats, const StepVerdict& verdict);
  int64_t tokens_per_step() const {
    return recipe_.train.global_batch * recipe_.data.sequence_length;
  }
  void after_first_step();
  void give_up_over_budget();
  void evaluate();
  void save();
  bool save_if_due();
  void save_the_end(Outcome outcome);

  Allocator& memory() const { return gpu_memory_ ? gpu_memory_->device() : resources_.allocator; }
  ComputeDevice device(kernels::gpu::Stream* stream = nullptr) const {
    return gpu_ ? ComputeDevice::gpu(*gpu_, stream) : ComputeDevice{};
  }

  const std::optional<DeviceSpec> gpu_;  // absent: the CPU computes
  const DType compute_;                  // what train.precision means on rank 0's machine
  const Recipe recipe_;
  FileSystem& files_;
  Log& log_;
  const StopSignals& signals_;
  const RankResources resources_;
  comm::Group& ranks_;
  const bool leads_;       // rank 0
  const std::string isa_;  // of the kernels, a GPU's architecture; all ranks have one (alike.h)
  Stops stops_;
  Threads threads_;
  Health health_;

  // Members that the steps of the constructor make.
  RunPlan plan_;
  // The weights of init.model, for a new run or one that freezes some of them.
  std::optional<models::ModelSource> first_weights_;
  std::optional<models::BaseModel> base_;            // the same, of a run that freezes tensors
  std::unique_ptr<kernels::ProductTable> products_;  // of train.machine; null: none
  std::unique_ptr<GpuMemory> gpu_memory_;            // null: the CPU computes
  // For saves; null: the CPU computes, or nothing is saved.
  std::unique_ptr<kernels::gpu::SideCopies> side_copies_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<TracedSteps> traced_;
  std::unique_ptr<RunData> data_;
  std::unique_ptr<StateWriter> writer_;
  std::unique_ptr<Peak> peak_;
  RunScale scale_;
  DataCheck check_;
  RunReport report_;
  std::unique_ptr<Saves> saves_;
  std::optional<data::Loader> loader_;  // until begin()

  RunCounters counters_;
  bool resumed_ = false;
  bool applied_ = true;  // the last step was
  bool save_due_ = false;
  double blocked_s_ = 0.0;  // by checkpoints, since the last row
};

}  // namespace ashlar::train
