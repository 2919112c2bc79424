// How it works.  Every rank runs the same program, and its calls follow from what all ranks know
// alike: the recipe, the counters, and the numbers of measure(), which are sums over all ranks.
// Ranks vote on what one of them alone can know (a signal, the clock).  Rank 0 alone writes metrics
// and reads datasets anew; its error ends the others.  Where rank 0 waits for a disk, or for its
// reading of datasets, all ranks wait together, so that no time-out of collectives ends the run.
//
//   start          the constructor's steps (run_start.cpp)
//   a turn         step(); evaluation and save where they are due; the vote to stop (stops.h)
//   a step         run, reduce, measure, judge; before_update(), apply or skip; the row
//   the end        a last save, waited for; the curves; close()
//
// A save takes the state after its step, and its tensors are copied during forward and backward of
// the next one: before_update() comes before apply(), which changes them.
#include "ashlar/train/loop.h"

#include <cmath>
#include <limits>
#include <utility>

#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/train/run.h"
#include "ashlar/train/run_pulse.h"

namespace ashlar::train {
namespace {

// A NaN without its sign, which depends on the instruction that made it and has no meaning.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace

Outcome Run::train() {
  if (finished()) return Outcome::kDone;
  Outcome outcome = stops_.asked() ? Outcome::kPreempted : Outcome::kDone;
  bool first = true;
  while (!finished() && outcome == Outcome::kDone) {
    traced_->begin_step(counters_.step + 1);
    const auto start = Clock::now();
    const double stall_before = data_->stall_s();
    StartTiming* timing = first ? resources_.timing : nullptr;
    if (timing) ranks_.trace().start(plan_.trace);
    if (!step()) {
      log_.info("step {} is left undone", counters_.step + 1);
      outcome = Outcome::kPreempted;
      break;
    }
    const double step_s = seconds_since(start);
    if (timing) timing->finish(ranks_.trace());
    traced_->end_step(data_->stall_s() - stall_before);
    check_.require_good();
    if (std::exchange(first, false)) after_first_step();
    if (is_due(recipe_.train.eval_every)) evaluate();
    save_due_ |= is_due(recipe_.checkpoint.every);
    const bool saved = save_if_due();
    saves_->report();
    const Stops::Votes votes = stops_.after_step(step_s, saves_->wants_second_try());
    if (votes.signal) {
      outcome = Outcome::kPreempted;
    } else if (votes.time_up && !finished()) {
      outcome = Outcome::kTimeUp;
    } else if (votes.second_try && !saved && !finished()) {
      save_due_ = true;
      save_if_due();
    }
  }
  stops_.ending();
  traced_->finish();
  save_the_end(outcome);
  check_.report_rest();
  report_.show_curves();
  return outcome;
}

void Run::after_first_step() {
  report_.first_step();
  report_.memory(counters_.step, memory().counts());
  if (products_) log_.info("{}", describe(*products_, recipe_.train.machine));
  if (resources_.timing) log_.lines(resources_.timing->text());
  const double peak_at_start = scale_.peak_flops;
  scale_.peak_flops = peak_->improve();
  if (scale_.peak_flops > 1.05 * peak_at_start)
    log_.info("peak {:.0f} GFLOP/s measured after the first step: MFU refers to it from here on",
              scale_.peak_flops * 1e-9);
  report_.set_peak(scale_.peak_flops);
  // The first step would be slowed down by the reading.
  check_.begin(data_->sources(), counters_.step - 1);
}

void Run::save_the_end(Outcome outcome) {
  const bool any = counters_.step > 0;  // a run without a step has nothing to lose
  if (outcome == Outcome::kPreempted) {
    const std::string signal = first_said(ranks_, signals_.name(), "signal");
    if (any)
      log_.info("{}: saving step {} and stopping", signal, counters_.step);
    else
      log_.info("{}: stopping; no step is done, and nothing is saved", signal);
  }
  check_.before_save();
  if (any) saves_->finish(counters_, health_.state(), data_->cursor());
}

// Closes files, for which a slow disk may take long, with no rank waiting for another meanwhile.
void Run::close() {
  show(ranks_, PulsePlace::kEnd);
  on_threads(ranks_, "end", [&] {
    saves_.reset();
    report_.close();
    check_.stop();
  });
}

// Reports the error to a person and to the other ranks before this rank waits for anything.
void Run::leave(const std::exception_ptr& error) {
  const bool told = ranks_.fail(error);
  if (saves_) saves_->give_up(told ? "" : report_of(error).message);
}

bool Run::step() {
  const auto start = Clock::now();
  const double stall_before = data_->stall_s();
  if (health_.passes(data_->next_sample(), recipe_.train.global_batch)) {
    pass_step();
    return true;
  }
  if (!run_micro_batches()) return false;
  enter("first step: gradient norm");
  const StepStats stats = measure();
  const StepVerdict verdict = judge(stats);
  enter("first step: optimizer");
  update(stats, verdict);
  enter("first step: report");
  report_.epochs(counters_.step, data_->epochs_begun());
  if (!verdict.apply) report_skip(stats, verdict);
  if (!verdict.level.empty()) report_.new_level(counters_.step, verdict);
  StepRow row = row_of(stats, verdict);
  row.stall_s = data_->stall_s() - stall_before;
  row.step_s = seconds_since(start);
  row.tokens_per_s = double(tokens_per_step()) / row.step_s;
  row.tflops = row.tokens_per_s * scale_.flop_per_token * 1e-12;
  row.mfu = row.tokens_per_s * scale_.flop_per_token / scale_.peak_flops;
  counters_.seconds += row.step_s;
  report_.step(row);
  report_.expert_loads(counters_.step, trainer_->model().all_step_loads());
  // The row of the step is written before the run may end.
  if (!verdict.apply && row.has_targets) give_up_over_budget();
  return true;
}

// Takes the data of a step, and changes nothing else.
void Run::pass_step() {
  const auto start = Clock::now();
  show(ranks_, PulsePlace::kData);
  data_->next_step();
  data_->take_step();
  applied_ = false;
  count_step();
  report_.epochs(counters_.step, data_->epochs_begun());
  report_.passed(counters_.step, data_->samples_of_step());
  StepRow row = row_of({}, {.apply = false, .reason = "", .level = ""});
  row.step_s = seconds_since(start);
  counters_.seconds += row.step_s;
  report_.step(row);
}

bool Run::run_micro_batches() {
  show(ranks_, PulsePlace::kData);
  const std::span<const MicroBatch> micro_batches = data_->next_step();
  enter("first step: forward, backward");
  stops_.begin_step();
  try {
    trainer_->run(counters_.step, micro_batches,
                  [&](int64_t number) { stops_.after_micro_batch(number); });
  } catch (const StepLeft&) {
    trainer_->skip();  // cursor and counters are those of the step before
    return false;
  }
  data_->take_step();
  return true;
}

StepStats Run::measure() {
  trainer_->reduce();
  StepStats stats = trainer_->measure();
  stats.loss = unsigned_nan(stats.loss);
  stats.gradient_norm = unsigned_nan(stats.gradient_norm);
  return stats;
}

StepVerdict Run::judge(const StepStats& stats) {
  if (stats.num_targets == 0) return {false, "none of its tokens has a target", ""};
  return health_.judge(counters_.step + 1, stats.loss, stats.gradient_norm);
}

void Run::update(const StepStats& stats, const StepVerdict& verdict) {
  const auto start = Clock::now();
  show(ranks_, PulsePlace::kSaveCopy);
  saves_->before_update();  // the save of an earlier step still copies what apply() changes
  blocked_s_ += seconds_since(start);
  applied_ = verdict.apply;
  applied_ ? trainer_->apply(stats) : trainer_->skip();
  count_step();
}

void Run::count_step() {
  ++counters_.step;
  if (PulseWriter* const pulse = ranks_.trace().pulse()) pulse->step_ended(counters_.step);
  counters_.samples += recipe_.train.global_batch;
  counters_.tokens += tokens_per_step();
}

// The row without the members that follow from the time of the step.
StepRow Run::row_of(const StepStats& stats, const StepVerdict& verdict) {
  const MemoryCounts taken = memory().counts();
  return {.step = counters_.step,
          .samples = counters_.samples,
          .tokens = counters_.tokens,
          .loss = stats.loss,
          .lr = trainer_->learning_rate(counters_.step - 1),
          .gradient_norm = stats.gradient_norm,
          .aux_loss = stats.aux_loss,
          .z_loss = stats.z_loss,
          .expert_rounds = stats.expert_rounds,
          .entropy = stats.entropy,
          .max_load = stats.max_load,
          .skipped = health_.skipped(),
          .non_finite = health_.non_finite(),
          .checkpoint_blocked_s = std::exchange(blocked_s_, 0.0),
          .memory_peak_bytes = taken.total.peak_bytes,
          .num_allocations = taken.num_allocations,
          .applied = verdict.apply,
          .has_targets = stats.num_targets > 0};
}

// Ends the run once the budget of skipped steps is used up.
void Run::give_up_over_budget() {
  const std::string problem = health_.over_budget();
  if (problem.empty()) return;
  const int64_t newest = saves_->newest_step();
  ASHLAR_FAIL(kNumeric, "{}; {}", problem,
              newest < 0 ? "there is no checkpoint"
                         : fmt::format("the last good checkpoint, step {}, is untouched", newest));
}

void Run::report_skip(const StepStats& stats, const StepVerdict& verdict) {
  const std::string culprit =
      std::isfinite(stats.gradient_norm)
          ? ""
          : first_said(ranks_, trainer_->first_bad_gradient(), "non-finite gradient");
  report_.skipped(counters_.step, stats, verdict, data_->samples_of_step(), culprit);
}

void Run::evaluate() {
  if (data_->sources().validation.empty()) return;
  const auto start = Clock::now();
  data::Loader loader = data_->validation();
  double sum = 0.0;
  int64_t count = 0;
  data::Batch batch;
  show(ranks_, PulsePlace::kEvaluate);
  for (int64_t i = 0; i < loader.num_batches(); ++i) {
    if (PulseWriter* const pulse = ranks_.trace().pulse())
      pulse->set_progress(i, loader.num_batches());
    loader.next(batch);
    if (stops_.asked_in_evaluation(i))
      return log_.info("the evaluation after step {} is left undone", counters_.step);
    const LossSum losses = trainer_->evaluate(micro_batch(batch));
    sum += losses.sum;
    count += int64_t(losses.count);
  }
  report_.evaluation(counters_.step, unsigned_nan(sum / double(count)), count,
                     seconds_since(start));
}

void Run::save() {
  check_.before_save();
  const auto start = Clock::now();
  saves_->save(counters_, health_.state(), data_->cursor());
  blocked_s_ += seconds_since(start);
}

// Saves nothing among skipped steps: starts that continued there would end as soon as this one.
bool Run::save_if_due() {
  if (!save_due_ || !applied_) return false;
  save_due_ = false;
  save();
  return true;
}

Outcome run_training(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
                     const RankResources& resources) {
  ASHLAR_REQUIRE(
      !recipe.data.train.empty(), kConfig,
      "{}: data.train is empty; expected the prefix of a dataset made by `ashlar data prepare`",
      recipe.source);
  Run run(recipe, files, log, signals, resources);
  try {
    const Outcome outcome = run.train();
    run.close();
    return outcome;
  } catch (...) {
    run.leave(std::current_exception());
    throw;
  }
}

}  // namespace ashlar::train
