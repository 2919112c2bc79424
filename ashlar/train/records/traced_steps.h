// Records the first steps of a start and writes them to files (recipe key train.trace_steps).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/log.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/compute_device.h"
#include "ashlar/train/records/trace_file.h"

namespace ashlar::train {

// Skips one step, which touches memory for the first time, records train.trace_steps steps, and
// writes RUN_DIR/trace/steps-FIRST-LAST-rank-R.json on every rank.  Between two steps (evaluations,
// saves, votes) only the time is recorded.  Every rank makes the same calls.  If the key is 0 they
// do nothing.  On a GPU kernels also have the times when it ran them, for which the host waits when
// the steps are recorded.
class TracedSteps {
 public:
  // of_a_step: the size of a step's trace in a dry run (plan.h).  Documents may need more, so there
  // is room for a quarter more.  local_ranks: the run's ranks on this machine, which share a clock.
  TracedSteps(const Recipe& recipe, FileSystem& files, Log& log, const parallel::Groups& groups,
              const TraceRoom& of_a_step, int local_ranks, const ComputeDevice& on);
  ~TracedSteps() { trace_.follow(nullptr); }
  TracedSteps(const TracedSteps&) = delete;

  void begin_step(int64_t number);
  // After the last recorded step: waits for all ranks, then writes the file.
  void end_step(double loader_wait_s);
  // At the end of a run: writes the recorded steps, and warns if they are fewer than requested.
  // Errors of both   kStorage, kComm.
  void finish();

 private:
  void write();

  const Recipe& recipe_;
  FileSystem& files_;
  Log& log_;
  const parallel::Groups& groups_;
  Trace& trace_;
  const TraceRoom of_a_step_;
  const bool one_clock_;
  const ComputeDevice on_;
  std::unique_ptr<DeviceClock> device_;  // of a GPU
  bool warm_ = false, written_ = false;
  double last_end_s_ = 0;  // of the last step
  std::vector<TracedStep> steps_;
};

// How far this rank's clock is ahead of rank 0's: the median difference of the two clocks when the
// ranks leave a barrier.  The error is at most the time between the first and the last rank that
// leaves.  Every rank calls it.
double clock_ahead_s(comm::Group& ranks, function_ref<double()> now_s);

}  // namespace ashlar::train
