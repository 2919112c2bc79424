// How it works.  What the ranks agree on around the Checkpointer of each, all of them in one order:
//
//   constructor  rank 0 opens first, for it takes the lease and finds the run's id in the newest
//                step; the others open with the id that it sends
//   resume       rank 0 names a step, every rank reads its part of it; if any found damage, rank 0
//                rejects the step and names the next older one
//   save         rank 0 draws the attempt and sends it; each rank hands its part to a Checkpointer
//   finish       settle() until nothing is under way; rank 0 says whether the last step is still
//                unsaved, and then all save again
//
// Only rank 0 knows what became of a step (Checkpointer's header), so it alone reports, counts
// failures and decides.  Rows of metrics are flushed before a save and synced, on the thread that
// writes checkpoints, before its commit: so no step outlives the rows up to it.
#include "ashlar/train/saves.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ashlar/comm/agree.h"
#include "ashlar/core/text.h"

namespace ashlar::train {

std::string checkpoint_root(const Recipe& recipe) {
  return join(recipe.train.run_dir, "checkpoints");
}

Saves::Saves(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks, int local_ranks,
             StateWriter& writer)
    : recipe_(recipe),
      files_(files),
      log_(log),
      ranks_(ranks),
      local_ranks_(local_ranks),
      writer_(writer),
      root_(checkpoint_root(recipe)) {
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

// One failure is a warning, since the next save may succeed; two in a row are an error.  On the
// other ranks a failure of storage says nothing: rank 0 tells of it.
void Saves::failed(int64_t step, const Error& error) {
  if (error.kind() != ErrorKind::kStorage || (leads() && checkpoints_->consecutive_failures() >= 2))
    throw error;
  if (last_saved_ == step) last_saved_ = -1;  // so that finish() saves it again
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
  // Two turns at most: the second failure in a row is thrown.
  while (unsaved(counters.step)) {
    save(counters, health, cursor);
    settle();
  }
}

// Waits until every save has ended, and tells of each.
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
