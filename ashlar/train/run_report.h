// The reports of a run on its steps: rows and events in metrics.jsonl, which rank 0 writes, and
// lines of the log.  Every rank makes the same calls.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/train/epochs.h"
#include "ashlar/train/health.h"
#include "ashlar/train/records/metrics.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

// The machine of rank 0, for the row `start`.
struct RunMachine {
  std::string isa;  // the instruction set of its kernels
  int cpus = 1, threads = 1;
};

class RunReport {
 public:
  RunReport(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks)
      : recipe_(recipe), files_(files), log_(log), ranks_(ranks) {}

  // To be called once the start is accepted: opens the files in the run's directory.  after_step:
  // the step that the start continues from.
  void begin(const RunScale& scale, const RunMachine& machine, int64_t after_step, bool resumed);
  Metrics* metrics() { return metrics_.get(); }  // rank 0's; null on the others
  void first_step();                             // how long after the start of the process it ended
  void memory(int64_t step, const MemoryCounts& memory);  // of rank 0
  void set_peak(double peak_flops);
  void step(const StepRow& row);
  // Every train.expert_loads_every steps.  loads: of the step, by block with experts, as
  // parallel::RankModel::all_step_loads has them.
  void expert_loads(int64_t step, std::span<const std::span<const int64_t>> loads);
  // A step that was applied although it was a spike, and one that was skipped.
  void new_level(int64_t step, const StepVerdict& verdict);
  void skipped(int64_t step, const StepStats& stats, const StepVerdict& verdict,
               const std::vector<int64_t>& samples, const std::string& bad_gradient);
  // A step that was not run, because samples of it did harm before.
  void passed(int64_t step, const std::vector<int64_t>& samples);
  void epochs(int64_t step, const std::vector<EpochBegun>& begun);
  void evaluation(int64_t step, double loss, int64_t tokens, double seconds);
  void show_curves();
  void close() { metrics_.reset(); }

 private:
  const Recipe& recipe_;
  FileSystem& files_;
  Log& log_;
  comm::Group& ranks_;
  std::unique_ptr<Metrics> metrics_;
  std::vector<int64_t> expert_blocks_;  // numbers of the blocks with experts
  bool told_of_no_targets_ = false;
};

}  // namespace ashlar::train
