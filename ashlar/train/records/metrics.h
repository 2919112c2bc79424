// Writes a row for each optimizer step to three places: a console line, DIRECTORY/metrics.jsonl,
// and TensorBoard.  docs/metrics.md gives every key with its formula.  A row that makes no console
// line allocates nothing.
//
// The files of a run hold every step once, in order, however its starts ended: a start continues
// after the rows of the step that it continues from, and rows are on disk before the checkpoint of
// their step is committed (flush() before the save, sync() before the commit).
//
// Only the constructor, drain() and sync() wait for the disk.  Threads write (row_file.h), and a
// later call throws the error of a failed write.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "ashlar/core/clock.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/train/records/row_file.h"
#include "ashlar/train/records/tensorboard.h"

namespace ashlar::train {

struct StepRow {
  int64_t step = 0;                 // updates done, this one included
  int64_t samples = 0, tokens = 0;  // consumed since the start of the run
  double loss = 0.0, lr = 0.0, gradient_norm = 0.0;
  double aux_loss = 0.0, z_loss = 0.0;
  double expert_rounds = 0.0;
  double entropy = 0.0, max_load = 0.0;
  int64_t skipped = 0, non_finite = 0;
  double step_s = 0.0, stall_s = 0.0, checkpoint_blocked_s = 0.0;
  double tokens_per_s = 0.0, tflops = 0.0, mfu = 0.0;
  int64_t memory_peak_bytes = 0, num_allocations = 0;
  bool applied = true;
  bool has_targets = true;  // false: there is no loss
};

struct RunScale {
  int64_t steps = 0;               // in the whole run
  double flop_per_token = 0.0;     // exact-causal
  double peak_flops = 0.0;         // measured on this machine
  bool has_experts = true;         // some block routes tokens; false: rows have no keys of balance
  bool has_router_losses = false;  // added to the step's cross entropy
  bool shares_experts = false;     // ep > 1
  // The seconds until train.max_minutes are over; null: there is no limit.
  std::function<double()> seconds_left = {};
};

class Metrics {
 public:
  // after_step: the step that the run continues from; rows of later steps are cut.
  Metrics(FileSystem& files, const std::string& directory, Log& log, const RunScale& scale,
          int64_t log_every, int64_t after_step);
  ~Metrics();  // drains; an error is logged
  Metrics(const Metrics&) = delete;
  void step(const StepRow& row);
  void evaluation(int64_t step, double loss, int64_t tokens, double seconds);
  // How often each expert was chosen in a step.  loads: of the blocks with these numbers, each with
  // the choices of no expert at the end.
  void expert_loads(int64_t step, std::span<const int64_t> blocks,
                    std::span<const std::span<const int64_t>> loads);
  // A line {"event": name, members...} of metrics.jsonl.
  void event(const char* name, const nlohmann::ordered_json& members);
  void set_peak(double peak_flops) { scale_.peak_flops = peak_flops; }
  void flush();  // hands everything so far to the threads
  void drain();  // flushes, and returns when the files have it
  void sync();   // returns when flushed rows are on disk; from any thread
  // Logs a chart of the run's losses, read back from the rows of all its starts.
  void show_curves();

 private:
  void hand_over();
  void console(const StepRow& row);
  double left_s(int64_t step) const;
  FileSystem& files_;
  const std::string path_;  // of metrics.jsonl
  Log& log_;
  RunScale scale_;
  int64_t log_every_;
  RowFile jsonl_;
  std::string pending_;  // lines that are not flushed yet
  TensorBoard board_;
  double window_s_ = 0.0, window_stall_s_ = 0.0;  // since the last console line
  int64_t window_tokens_ = 0, window_steps_ = 0;
  double recent_step_s_ = 0.0;  // smoothed, for the time left
  Clock::time_point last_flush_;
};

}  // namespace ashlar::train
