// The checkpoints of a run on its ranks: every rank writes its part of each, rank 0 leads, tells
// and counts.  All ranks call the same functions in the same order.
#pragma once

#include <functional>
#include <memory>

#include "ashlar/checkpoint/checkpointer.h"
#include "ashlar/comm/group.h"
#include "ashlar/train/metrics.h"
#include "ashlar/train/state.h"

namespace ashlar::train {

std::string checkpoint_root(const Recipe& recipe);  // the root of the run's steps

class Saves {
 public:
  // Takes the lease of the checkpoint root and finds the newest good step there.
  // local_ranks: those on this machine, which share its memory.
  Saves(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks, int local_ranks,
        StateWriter& writer);

  // Rank 0's metrics, before its first save; they outlive this object.
  void set_metrics(Metrics* metrics) { metrics_ = metrics; }

  // Reads the newest step that every rank finds whole; damaged ones are set aside.  take() fills
  // the rank's part of the state; kCorrupt from it rejects the step.  False: there is none.
  bool resume(const std::function<void(const checkpoint::StepReader&)>& take);

  void before_update() { checkpoints_->before_update(); }
  // A save that fails is a warning, here or in report(); twice in a row an error (kStorage).
  void save(const RunCounters& counters, const HealthState& health,
            const data::LoaderState& cursor);
  // Before the end: the step is saved unless the recipe says never, and everything is on disk.
  void finish(const RunCounters& counters, const HealthState& health,
              const data::LoaderState& cursor);
  // Tells of the saves that were committed, or failed, since the last call.
  void report();

 private:
  bool leads() const { return ranks_.rank() == 0; }
  void open(const std::string& run_id);
  checkpoint::SaveRequest request(const RunCounters&, const HealthState&,
                                  const data::LoaderState& cursor);
  bool unsaved(int64_t step);
  void settle();
  void failed(int64_t step, const Error& error);
  checkpoint::StepReader reader_of(int64_t step) const;

  const Recipe& recipe_;
  FileSystem& files_;
  Log& log_;
  comm::Group& ranks_;
  const int local_ranks_;
  StateWriter& writer_;
  Metrics* metrics_ = nullptr;
  const std::string root_;
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;
  int64_t last_saved_ = -1;
};

}  // namespace ashlar::train
