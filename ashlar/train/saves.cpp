#include "ashlar/train/saves.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ashlar/comm/agree.h"
#include "ashlar/core/text.h"

namespace ashlar::train {

Saves::Saves(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks, int local_ranks,
             StateWriter& writer)
    : recipe_(recipe),
      files_(files),
      log_(log),
      ranks_(ranks),
      local_ranks_(local_ranks),
      writer_(writer),
      root_(join(recipe.train.run_dir, "checkpoints")) {
  // Rank 0 first: what it finds there decides the run's id.
  std::array<uint8_t, 32> id{};  // 32 hex digits
  if (leads()) {
    open("");
    std::copy_n(checkpoints_->run_id().begin(), id.size(), id.begin());
  }
  from_leader(ranks_, id, "run id");
  if (!leads()) open(std::string(id.begin(), id.end()));
}

void Saves::open(const std::string& run_id) {
  checkpoint::CheckpointOptions options;
  options.keep = recipe_.checkpoint.keep;
  options.keep_every = recipe_.checkpoint.keep_every;
  options.async = recipe_.checkpoint.async;
  options.run_id = run_id;
  options.writer = ranks_.rank();
  options.num_writers = ranks_.size();
  options.local_writers = local_ranks_;
  checkpoints_ = std::make_unique<checkpoint::Checkpointer>(files_, root_, options, log_);
}

bool Saves::resume(const std::function<void(const checkpoint::StepReader&)>& take) {
  for (;;) {
    const auto newest = leads() ? checkpoints_->newest() : std::nullopt;
    const int64_t step = from_leader(ranks_, newest ? newest->step : -1, "step to continue from");
    if (step < 0) return false;
    std::string damage;
    try {
      take(reader_of(step));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      damage = error.what();
    }
    damage = first_said(ranks_, damage, "damage of a step");
    if (damage.empty()) {
      last_saved_ = step;
      return true;
    }
    if (leads()) checkpoints_->reject_newest(damage);
  }
}

checkpoint::StepReader Saves::reader_of(int64_t step) const {
  for (const checkpoint::StepRef& ref : checkpoint::committed_steps(files_, root_))
    if (ref.step == step) return checkpoint::open_checkpoint(files_, ref.directory, log_);
  ASHLAR_FAIL(kStorage,
              "{}: rank 0 continues from step {}, which rank {} does not find there; expected a "
              "directory that all ranks share",
              root_, step, ranks_.rank());
}

checkpoint::SaveRequest Saves::request(const RunCounters& counters, const HealthState& health,
                                       const data::LoaderState& cursor) {
  checkpoint::SaveRequest request = writer_.request(counters, health, cursor);
  if (leads()) {
    request.attempt = checkpoint::random_id();
    // Rows up to this step outlive whatever the checkpoint outlives.
    metrics_->flush();
    request.before_commit = [metrics = metrics_] { metrics->sync(); };
  }
  from_leader(ranks_, request.attempt, "save attempt");
  return request;
}

void Saves::save(const RunCounters& counters, const HealthState& health,
                 const data::LoaderState& cursor) {
  const checkpoint::SaveRequest what = request(counters, health, cursor);
  try {
    last_saved_ = counters.step;
    checkpoints_->save(what);
  } catch (const Error& error) {
    failed(counters.step, error);
  }
}

// Training goes on: the next save may succeed.  Twice in a row is a broken disk.  Of the others
// only rank 0 tells.
void Saves::failed(int64_t step, const Error& error) {
  if (error.kind() != ErrorKind::kStorage || (leads() && checkpoints_->consecutive_failures() >= 2))
    throw error;
  if (last_saved_ == step) last_saved_ = -1;
  if (!leads()) return;
  log_.warn("{}", error.what());
  metrics_->event("save_failed", {{"step", step}, {"error", error.what()}});
}

bool Saves::unsaved(int64_t step) {
  return from_leader(ranks_, recipe_.checkpoint.every >= 0 && last_saved_ != step, "last save");
}

void Saves::finish(const RunCounters& counters, const HealthState& health,
                   const data::LoaderState& cursor) {
  settle();
  // A failure is tried again once: the second in a row is thrown.
  while (unsaved(counters.step)) {
    save(counters, health, cursor);
    settle();
  }
}

// Until every save ended, and was told of.
void Saves::settle() {
  checkpoints_->drain();
  report();
}

void Saves::report() {
  if (!leads()) return;
  for (const checkpoint::SaveFailure& failure : checkpoints_->take_failures())
    failed(failure.step, failure.error);
  for (const checkpoint::SaveStats& s : checkpoints_->take_stats()) {
    log_.info("step {:>6}  saved {} ({}): training blocked {:.1f} ms, committed after {:.2f} s",
              s.step, s.directory, format_bytes(s.bytes), 1e3 * s.blocked_s, s.total_s);
    metrics_->event("checkpoint", {{"step", s.step},
                                   {"bytes", s.bytes},
                                   {"blocked_s", s.blocked_s},
                                   {"copy_s", s.copy_s},
                                   {"write_s", s.write_s},
                                   {"commit_s", s.commit_s},
                                   {"total_s", s.total_s}});
  }
}

}  // namespace ashlar::train
