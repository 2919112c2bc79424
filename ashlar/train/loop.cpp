#include "ashlar/train/loop.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/text.h"
#include "ashlar/data/prefetch.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/sizing/zaya.h"
#include "ashlar/train/chart.h"
#include "ashlar/train/metrics.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/process.h"
#include "ashlar/train/signals.h"
#include "ashlar/train/state.h"

namespace ashlar::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

data::LoaderOptions loader_options(const Recipe& recipe, const data::Tokenizer& tokenizer) {
  return {.micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .num_streams = recipe.data.num_streams,
          .seed = recipe.train.seed,
          .vocab_size = recipe.model.vocab_size,
          .pad_id = tokenizer.pad_id(),
          .document_reset = recipe.data.document_reset,
          .mask_document_end = recipe.data.mask_document_end};
}

int64_t memory_limit(const Recipe& recipe) {
  return recipe.train.memory_limit_mib > 0 ? recipe.train.memory_limit_mib << 20 : INT64_MAX;
}

MicroBatch micro_batch(const data::Batch& batch) {
  return {batch.ids_BT, batch.targets_BT, batch.segments};
}

// Best-fit packing never cuts a document: what does not fit a sample is not trained on.
void report_dropped(const std::vector<data::Source>& sources, int64_t sequence_length, Log& log) {
  int64_t documents = 0, tokens = 0, all = 0;
  for (const data::Source& source : sources) {
    documents += source.samples.num_dropped();
    tokens += source.samples.dropped_tokens();
    all += source.samples.range().size();
  }
  if (documents == 0) return;
  log.info("best-fit packing drops {} documents longer than {} tokens: {} of {} training tokens",
           format_thousands(documents), format_thousands(sequence_length + 1),
           format_thousands(tokens), format_thousands(all));
}

// One start of the program on a run.
class Run {
 public:
  Run(const Recipe& recipe, FileSystem& files, Log& log);
  Outcome train();

 private:
  void resume();
  void step();
  void skip(const StepStats& stats, const Verdict& verdict);
  void evaluate();
  void save();
  void save_failed(const Error& error);
  void finish_saves();
  void report_saves();

  Recipe recipe_;
  FileSystem& files_;
  Log& log_;
  StopSignals signals_;
  DType compute_;
  RunPlan plan_;
  Threads threads_;
  Allocator allocator_;
  Trainer trainer_;
  data::Sources sources_;  // before the tokenizer: a dataset that is not there is to be named first
  std::unique_ptr<data::Tokenizer> tokenizer_;
  StateWriter writer_;
  Health health_;
  RunScale scale_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;
  std::unique_ptr<data::Prefetcher> prefetch_;
  data::Batch batch_;
  std::vector<int64_t> samples_;  // numbers, of the current step
  data::LoaderState cursor_;      // after the last consumed batch
  RunCounters counters_;
  int64_t last_saved_ = -1;
  double blocked_s_ = 0.0;  // by checkpoints, since the last row
  Clock::time_point start_ = Clock::now();
};

Run::Run(const Recipe& recipe, FileSystem& files, Log& log)
    : recipe_(recipe),
      files_(files),
      log_(log),
      compute_(resolve_precision(recipe.train.precision)),
      plan_(plan_run(recipe, compute_)),
      threads_(int(recipe.train.threads)),
      allocator_(Device::kCpu, memory_limit(recipe)),
      trainer_(recipe, compute_, allocator_, threads_, plan_.workspace_bytes),
      sources_(data::open_sources(files, recipe.data, recipe.model.vocab_size)),
      tokenizer_(data::tokenizer_of(files, recipe.data)),
      writer_(trainer_, tokenizer_->bytes()),
      health_(recipe.health) {
  const std::string& directory = recipe_.train.run_dir;
  files_.make_directories(directory);
  write_text(files_, join(directory, "recipe.toml"), to_toml(recipe_));
  checkpoint::CheckpointOptions options;
  options.keep = recipe_.checkpoint.keep;
  options.keep_every = recipe_.checkpoint.keep_every;
  options.async = recipe_.checkpoint.async;
  checkpoints_ = std::make_unique<checkpoint::Checkpointer>(files_, join(directory, "checkpoints"),
                                                            options, log_);
  scale_ = {recipe_.train.steps, zaya_flop(recipe_.model, recipe_.data.sequence_length).training,
            kernels::measure_peak_flops(trainer_.context(), compute_)};
  metrics_ = std::make_unique<Metrics>(files_, directory, log_, scale_, recipe_.train.log_every);
  log_.info(
      "{}: {} parameters, {} tokens a step, {} on {} ({} threads), peak {:.0f} GFLOP/s measured, "
      "memory {}",
      recipe_.name.empty() ? recipe_.source : recipe_.name, format_thousands(plan_.num_parameters),
      format_thousands(recipe_.train.global_batch * recipe_.data.sequence_length),
      name_of(compute_), kernels::name_of(kernels::isa()), threads_.size(),
      scale_.peak_flops * 1e-9, format_bytes(plan_.memory.total.peak_bytes));
  report_dropped(sources_.train, recipe_.data.sequence_length, log_);
  resume();
}

void Run::resume() {
  data::Loader loader(sources_.train, loader_options(recipe_, *tokenizer_));
  bool restored = false;
  while (!restored && checkpoints_->newest()) {
    try {
      const checkpoint::StepReader reader = checkpoints_->open_newest();
      const Restored state = restore(reader, trainer_);
      counters_ = state.counters;
      health_.restore(state.health);
      loader.restore(state.loader, recipe_.data.allow_dataset_change);
      restored = true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      checkpoints_->reject_newest(error.what());
    }
  }
  if (restored) {
    last_saved_ = counters_.step;
    log_.info("continuing after step {} ({} tokens)", counters_.step,
              format_thousands(counters_.tokens));
    metrics_->event("resume", {{"step", counters_.step}});
  } else {
    trainer_.initialize();
  }
  cursor_ = loader.state();
  prefetch_ = std::make_unique<data::Prefetcher>(std::move(loader));
}

Outcome Run::train() {
  const auto every = [&](int64_t period) { return period > 0 && counters_.step % period == 0; };
  Outcome outcome = Outcome::kDone;
  const auto deadline = recipe_.train.max_minutes * 60.0;
  bool first = true;
  while (counters_.step < recipe_.train.steps) {
    step();
    if (first) {
      log_.info("first step finished {:.2f} s after the process started", process_age_s());
      metrics_->event("first_step", {{"seconds", process_age_s()}});
      first = false;
    }
    if (every(recipe_.train.eval_every)) evaluate();
    if (every(recipe_.checkpoint.every)) save();
    report_saves();
    if (signals_.requested()) {
      outcome = Outcome::kPreempted;
      break;
    }
    if (deadline > 0.0 && seconds_since(start_) >= deadline &&
        counters_.step < recipe_.train.steps) {
      outcome = Outcome::kTimeUp;
      break;
    }
  }
  if (outcome == Outcome::kPreempted)
    log_.info("{}: saving step {} and stopping", signals_.name(), counters_.step);
  const auto unsaved = [&] {
    return recipe_.checkpoint.every >= 0 && last_saved_ != counters_.step;
  };
  if (unsaved()) save();
  // That may have told of an earlier save only: once more, and now a failure ends the run.
  if (unsaved()) checkpoints_->save(writer_.request(counters_, health_.state(), cursor_));
  finish_saves();
  report_saves();
  metrics_->flush();
  const RunCurves curves =
      read_curves(read_text(files_, join(recipe_.train.run_dir, "metrics.jsonl"), INT64_MAX));
  const std::string chart = render_chart(curves.loss, curves.validation);
  if (!chart.empty()) log_.info("\n{}\n", chart);
  return outcome;
}

void Run::step() {
  const auto start = Clock::now();
  const double stall_before = prefetch_->stall_s();
  trainer_.begin_step(counters_.step);
  samples_.clear();
  for (int64_t i = 0; i < prefetch_->batches_per_step(); ++i) {
    prefetch_->next(batch_);
    samples_.insert(samples_.end(), batch_.samples_B.begin(), batch_.samples_B.end());
    trainer_.accumulate(micro_batch(batch_));
  }
  cursor_ = batch_.state;
  const StepStats stats = trainer_.measure();
  const double lr = trainer_.learning_rate(counters_.step);
  const Verdict verdict = health_.judge(counters_.step + 1, stats.loss, stats.gradient_norm);
  const auto before = Clock::now();
  checkpoints_->before_update();
  blocked_s_ += seconds_since(before);
  if (verdict.apply) trainer_.apply(stats);
  ++counters_.step;
  counters_.samples += int64_t(samples_.size());
  counters_.tokens += int64_t(samples_.size()) * recipe_.data.sequence_length;
  if (!verdict.apply) skip(stats, verdict);

  StepRow row{.step = counters_.step,
              .samples = counters_.samples,
              .tokens = counters_.tokens,
              .loss = stats.loss,
              .lr = lr,
              .gradient_norm = stats.gradient_norm,
              .entropy = stats.entropy,
              .max_load = stats.max_load,
              .skipped = health_.skipped(),
              .non_finite = health_.non_finite(),
              .stall_s = prefetch_->stall_s() - stall_before,
              .checkpoint_blocked_s = blocked_s_,
              .applied = verdict.apply};
  row.step_s = seconds_since(start);
  counters_.seconds += row.step_s;
  row.tokens_per_s = double(samples_.size()) * double(recipe_.data.sequence_length) / row.step_s;
  row.tflops = row.tokens_per_s * scale_.flop_per_token * 1e-12;
  row.mfu = row.tokens_per_s * scale_.flop_per_token / scale_.peak_flops;
  const MemoryCounts memory = allocator_.counts();
  row.memory_peak_bytes = memory.total.peak_bytes;
  row.num_allocations = memory.num_allocations;
  metrics_->step(row);
  blocked_s_ = 0.0;
  if (!verdict.apply) health_.check_budget();
}

void Run::skip(const StepStats& stats, const Verdict& verdict) {
  const std::string culprit =
      std::isfinite(stats.gradient_norm) ? "" : trainer_.first_bad_gradient();
  log_.warn("step {} is skipped: {}{}{}; its samples are {} and the {} after it", counters_.step,
            verdict.reason, culprit.empty() ? "" : "; first non-finite gradient ", culprit,
            samples_.front(), samples_.size() - 1);
  metrics_->event("skip", {{"step", counters_.step},
                           {"reason", verdict.reason},
                           {"first_bad_gradient", culprit},
                           {"samples", samples_}});
  metrics_->flush();
}

void Run::evaluate() {
  if (sources_.validation.empty()) return;
  const auto start = Clock::now();
  data::LoaderOptions options = loader_options(recipe_, *tokenizer_);
  options.global_batch = options.micro_batch;
  options.num_streams = 0;
  options.shuffle = false;
  data::Loader loader(sources_.validation, options);
  const int64_t available = std::max<int64_t>(1, loader.samples_per_epoch() / options.micro_batch);
  const int64_t batches = std::min(recipe_.train.eval_batches, available);
  double sum = 0.0;
  int64_t count = 0;
  data::Batch batch;
  for (int64_t i = 0; i < batches; ++i) {
    loader.next(batch);
    const auto [loss, targets] = trainer_.evaluate(micro_batch(batch));
    sum += loss;
    count += targets;
  }
  metrics_->evaluation(counters_.step, sum / double(count), count, seconds_since(start));
}

void Run::save() {
  const auto start = Clock::now();
  try {
    checkpoints_->save(writer_.request(counters_, health_.state(), cursor_));
    last_saved_ = counters_.step;
  } catch (const Error& error) {
    // Training goes on: the next save may succeed.  Twice in a row is a broken disk.
    if (error.kind() != ErrorKind::kStorage || checkpoints_->consecutive_failures() >= 2) throw;
    save_failed(error);
  }
  blocked_s_ += seconds_since(start);
}

void Run::save_failed(const Error& error) {
  log_.warn("{}", error.what());
  metrics_->event("save_failed", {{"step", counters_.step}, {"error", error.what()}});
}

// Only the last step decides: an earlier save that failed meanwhile is a warning.
void Run::finish_saves() {
  try {
    checkpoints_->wait();
  } catch (const Error& error) {
    const auto newest = checkpoints_->newest();
    if (error.kind() != ErrorKind::kStorage || !newest || newest->step != counters_.step) throw;
    save_failed(error);
  }
}

void Run::report_saves() {
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

}  // namespace

Outcome run_training(const Recipe& recipe, FileSystem& files, Log& log) {
  ASHLAR_REQUIRE(
      !recipe.data.train.empty(), kConfig,
      "{}: data.train is empty; expected the prefix of a dataset made by `ashlar data prepare`",
      recipe.source);
  Run run(recipe, files, log);
  return run.train();
}

}  // namespace ashlar::train
