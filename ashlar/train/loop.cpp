// How it works.  Every rank runs the same program, and what it calls follows from what all know
// alike: the recipe, the counters, and the numbers of measure(), which are sums over all ranks.
// What a rank alone can know (a signal, the clock) is voted on.  Rank 0 alone writes metrics and
// reads datasets anew; its error ends the others.  Where it waits for a disk, or for its reading of
// datasets, all wait together, so that no time-out of collectives ends the run.
//
//   construction   precision of rank 0, plan, memory, whether the run's directory can be written,
//                  init.model of a new run, trainer, room for checkpoints, data, the weights of
//                  init.model; barrier "start"; then the run's directory: lease, newest good step,
//                  state; barrier "resume"; begin()
//   a turn         step(); evaluation and save where they are due; the vote to stop (stops.h)
//   a step         run, reduce, measure, judge; before_update(), apply or
//                  skip; the row
//   the end        a last save, waited for; the curves; close()
//
// A save takes the state after its step, and its tensors are copied during forward and backward of
// the next one: before_update() stands before apply(), which changes them.  The loader's state that
// is saved is that of the last batch taken (cursor_), since the prefetcher's loader is further on.
#include "ashlar/train/loop.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/process.h"
#include "ashlar/core/signals.h"
#include "ashlar/core/text.h"
#include "ashlar/data/prefetch.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/sizing/model.h"
#include "ashlar/train/alike.h"
#include "ashlar/train/changes.h"
#include "ashlar/train/data_check.h"
#include "ashlar/train/epochs.h"
#include "ashlar/train/first_weights.h"
#include "ashlar/train/inputs.h"
#include "ashlar/train/metrics.h"
#include "ashlar/train/peak.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/run_recipe.h"
#include "ashlar/train/saves.h"
#include "ashlar/train/start_checks.h"
#include "ashlar/train/state.h"
#include "ashlar/train/stops.h"
#include "ashlar/train/traced_steps.h"

namespace ashlar::train {
namespace {

// A NaN without its sign, which depends on the instruction that made it and says nothing.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

std::string named(const std::vector<int64_t>& samples) {
  return samples.size() == 1
             ? fmt::format("its sample is {}", samples.front())
             : fmt::format("its samples are {} to {}", samples.front(), samples.back());
}

MicroBatch micro_batch(const data::Batch& batch) {
  return {batch.ids_BT, batch.targets_BT, batch.segments};
}

// One start of the program on a run, on one of its ranks.  Rank 0 writes metrics and leads the
// checkpoints, of which every rank writes its part.
class Run {
 public:
  Run(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
      const RankResources& resources);
  Outcome train();
  void close();  // after train()
  void leave(const std::exception_ptr& error);

 private:
  std::string description() const;
  void resume(data::Loader& loader);
  void begin_with_first_weights();
  void begin(data::Loader loader);
  bool finished() const;
  Reader reader() const;
  bool step();  // false: it was left undone
  void skip(const StepStats& stats, const Verdict& verdict);
  void give_up_over_budget();
  void report_epochs();
  void evaluate();
  void save();
  bool save_if_due();
  void save_the_end(Outcome outcome);

  const DType compute_;  // what train.precision means on rank 0's machine
  const Recipe recipe_;
  FileSystem& files_;
  Log& log_;
  const StopSignals& signals_;
  comm::Group& ranks_;
  const int local_ranks_, num_cpus_;
  const bool leads_;       // rank 0
  const std::string isa_;  // of the kernels; all ranks have one (alike.h)
  Stops stops_;
  const RunPlan plan_;
  const std::optional<models::ModelSource> first_weights_;  // of a new run with init.model
  Threads threads_;
  Allocator& allocator_;
  Trainer trainer_;
  TracedSteps traced_;
  data::Sources sources_;  // before the tokenizer: a dataset that is not there is to be named first
  std::unique_ptr<data::Tokenizer> tokenizer_;  // null: of other programs' data nothing is known
  StateWriter writer_;
  Health health_;
  RunScale scale_;
  Peak peak_;
  DataCheck check_;
  std::unique_ptr<Metrics> metrics_;  // of rank 0
  std::unique_ptr<Saves> saves_;
  std::unique_ptr<data::Prefetcher> prefetch_;
  std::vector<data::Batch> batches_;  // of a step
  std::vector<MicroBatch> micro_batches_;
  data::LoaderState cursor_;  // after the last consumed batch
  std::unique_ptr<Epochs> epochs_;
  RunCounters counters_;
  bool resumed_ = false;
  bool applied_ = true;  // the last step was
  bool save_due_ = false;
  bool told_of_no_targets_ = false;
  double blocked_s_ = 0.0;  // by checkpoints, since the last row
};

// All ranks compute alike: as rank 0's machine does where train.precision is `auto`.
DType agreed_compute(Precision precision, comm::Group& ranks) {
  return DType(from_leader(ranks, int64_t(nn::resolve_precision(precision)), "precision"));
}

// The recipe with train.precision as the run computes, so that the saved one tells a later start if
// the choice has changed.
Recipe with_precision(Recipe recipe, DType compute) {
  recipe.train.precision = nn::precision_of(compute);
  return recipe;
}

// The plan of this rank, which fits, in a run whose directory can be written.
RunPlan accepted_plan(const Recipe& recipe, DType compute, FileSystem& files,
                      const RankResources& resources) {
  const ParallelSpec parallel = resolve_parallel(recipe, resources.ranks.size());
  require_least_memory(recipe, parallel, compute, resources.local_ranks, memory_limit_bytes());
  RunPlan plan = plan_run(recipe, compute, resources.ranks.size(), resources.num_threads,
                          resources.ranks.rank());
  require_memory(rank_bytes(plan, recipe, parallel), recipe, resources.ranks, resources.local_ranks,
                 memory_limit_bytes());
  while_leader(resources.ranks, "run directory", [&] { require_writable(files, recipe); });
  return plan;
}

Run::Run(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
         const RankResources& resources)
    : compute_(agreed_compute(recipe.train.precision, resources.ranks)),
      recipe_(with_precision(recipe, compute_)),
      files_(files),
      log_(log),
      signals_(signals),
      ranks_(resources.ranks),
      local_ranks_(resources.local_ranks),
      num_cpus_(resources.num_cpus),
      leads_(resources.ranks.rank() == 0),
      isa_(kernels::name_of(kernels::isa())),
      stops_(resources.ranks, signals, recipe_, resolve_parallel(recipe_, resources.ranks.size())),
      plan_(accepted_plan(recipe_, compute_, files, resources)),
      first_weights_(find_first_weights(files, recipe_, resources.ranks, log)),
      threads_(resources.num_threads),
      allocator_(resources.allocator),
      trainer_(recipe_, compute_, allocator_, threads_, ranks_, plan_.step_memory),
      traced_(recipe_, files, log, trainer_.model().groups(), plan_.trace, resources.local_ranks),
      sources_(data::open_sources(files, recipe.data, recipe.model.vocab_size)),
      tokenizer_(data::tokenizer_of(files, recipe.data)),
      writer_(trainer_, {}, isa_),
      health_(recipe.health),
      peak_(trainer_.context(), compute_, resources, files, recipe_.train.run_dir),
      check_(ranks_, files, log) {
  while_leader(ranks_, "room for checkpoints",
               [&] { check_room(files_, recipe_, saved_bytes(trainer_), log_); });
  scale_ = {
      .steps = recipe_.train.steps,
      .flop_per_token = model_flop(model_of(recipe_.model), recipe_.data.sequence_length).training,
      .peak_flops = 0.0,
      .has_experts = !trainer_.model().all_step_loads().empty(),
      .has_router_losses = trainer_.model().has_router_losses(),
      .shares_experts = trainer_.model().parallel().ep > 1,
      .seconds_left = [this] { return stops_.seconds_left(); }};
  scale_.peak_flops = peak_.find();
  warn_of_start(recipe_, scale_, threads_.size(), local_ranks_, num_cpus_, log_);
  require_same_inputs(ranks_, files_, recipe_, sources_, tokenizer_.get(), first_weights_);
  if (recipe_.data.verify) check_.prepare(sources_);
  data::Loader loader(sources_.train,
                      loader_options(recipe_, sources_.train, tokenizer_.get(), reader()));
  if (first_weights_)
    take_first_weights(files_, *first_weights_, ranks_, sources_.train, trainer_, log_);
  ranks_.barrier("start").wait();  // no rank refuses the recipe: the run's directory may be touched
  saves_ = std::make_unique<Saves>(recipe_, files_, log_, ranks_, resources.local_ranks, writer_);
  log_.info("{}", description());
  const std::string warmup = warmup_problem(recipe_);
  if (!warmup.empty()) log_.warn("{}", warmup);
  if (!tokenizer_)
    log_.info("the data names no tokenizer, nor does data.tokenizer: checkpoints hold none");
  report_dropped(sources_.train, recipe_.data.sequence_length, log_);
  resume(loader);
  ranks_.barrier("resume").wait();  // no rank refuses the checkpoint
  if (!finished()) begin(std::move(loader));
}

std::string Run::description() const {
  const ParallelSpec& p = trainer_.model().parallel();
  std::string ranks;
  if (ranks_.size() > 1)
    ranks = fmt::format("{} ranks ({}, zero {}), ", ranks_.size(), mesh_text(p), p.zero);
  return fmt::format(
      "{}: {} parameters, {} tokens a step, {} on {} ({}{} threads{}), peak {:.0f} GFLOP/s {}, "
      "memory {}{}",
      recipe_.name.empty() ? recipe_.source : recipe_.name, format_thousands(plan_.num_parameters),
      format_thousands(recipe_.train.global_batch * recipe_.data.sequence_length),
      name_of(compute_), isa_, ranks, threads_.size(), ranks.empty() ? "" : " each",
      scale_.peak_flops * 1e-9, peak_.is_kept() ? "as in peak.json" : "measured",
      format_bytes(plan_.memory.total.peak_bytes), ranks.empty() ? "" : " a rank");
}

void Run::resume(data::Loader& loader) {
  Restored saved;
  bool same_data = true;
  resumed_ = saves_->resume([&](const checkpoint::StepReader& reader) {
    saved = restore(reader, trainer_);
    counters_ = saved.counters;
    health_.restore(saved.health);
    same_data = loader.restore(saved.loader, recipe_.data.allow_dataset_change);
  });
  if (leads_ && first_weights_)
    saved.inherited = {models::companions_of(files_, *first_weights_),
                       models::place_of_companions(*first_weights_),
                       first_weights_->spec.eos_token_ids};
  if (leads_)
    writer_.take(run_companions(std::move(saved.inherited), model_of(recipe_.model),
                                tokenizer_.get(), sources_.train, log_));
  if (!resumed_) return begin_with_first_weights();
  trainer_.weights_changed();
  if (finished())
    return log_.info("the run is finished: step {} of {} is done; raise train.steps to go on",
                     counters_.step, recipe_.train.steps);
  log_.info("continuing after step {} ({} tokens)", counters_.step,
            format_thousands(counters_.tokens));
  const std::string place = fmt::format("the recipe of step {}", counters_.step);
  std::vector<std::string> others;
  if (!saved.isa.empty() && saved.isa != isa_)
    others.push_back(fmt::format("the instruction set of kernels was {}, is {}", saved.isa, isa_));
  auto reasons = report_changes(saved.recipe, place, recipe_, others, counters_.step, log_);
  if (!same_data) reasons.insert(reasons.begin(), "the data");
  if (!reasons.empty()) {
    health_.forget_values();
    log_.info("the window of health.window steps begins anew, because these changed: {}",
              fmt::join(reasons, ", "));
  }
  if (saved.num_converted > 0)
    log_.info("the state of step {} was converted to train.precision {}{}: {} tensors",
              counters_.step, kPrecisionNames[size_t(recipe_.train.precision)],
              compute_ == DType::kF64 ? "" : ", which rounds it", saved.num_converted);
  if (!same_data) report_new_blend(sources_.train, loader.state(), log_);
}

// Those of init.model are here already.
void Run::begin_with_first_weights() {
  if (recipe_.init.model.empty()) return trainer_.initialize();
  ASHLAR_REQUIRE(first_weights_, kStorage,
                 "{}: its steps went away while this start looked at them; start again",
                 checkpoint_root(recipe_));
  trainer_.weights_changed();
}

// The start is accepted: from here on the run's directory tells of it.
void Run::begin(data::Loader loader) {
  while_leader(ranks_, "run directory", [&] {
    const std::string& directory = recipe_.train.run_dir;
    write_run_recipe(files_, recipe_);
    metrics_ = std::make_unique<Metrics>(files_, directory, log_, scale_, recipe_.train.log_every,
                                         counters_.step);
    metrics_->event("start", {{"step", counters_.step}, {"isa", isa_}});
    if (resumed_) metrics_->event("resume", {{"step", counters_.step}});
  });
  cursor_ = loader.state();
  epochs_ = std::make_unique<Epochs>(sources_.train, cursor_);
  saves_->begin(metrics_.get(), counters_, health_.state(), cursor_);
  prefetch_ = std::make_unique<data::Prefetcher>(std::move(loader));
}

bool Run::finished() const {
  return counters_.step >= recipe_.train.steps;
}

Reader Run::reader() const {
  const parallel::RankModel& model = trainer_.model();
  return {model.groups().coordinate(parallel::Axis::kDp), model.parallel().dp};
}

Outcome Run::train() {
  if (finished()) return Outcome::kDone;
  const auto every = [&](int64_t period) { return period > 0 && counters_.step % period == 0; };
  Outcome outcome = stops_.asked() ? Outcome::kPreempted : Outcome::kDone;
  bool first = true;
  while (!finished() && outcome == Outcome::kDone) {
    traced_.begin_step(counters_.step + 1);
    const auto start = Clock::now();
    const double stall_before = prefetch_->stall_s();
    if (!step()) {
      log_.info("step {} is left undone", counters_.step + 1);
      outcome = Outcome::kPreempted;
      break;
    }
    const double step_s = seconds_since(start);
    traced_.end_step(prefetch_->stall_s() - stall_before);
    check_.require_good();
    if (first) {
      if (const auto age_s = process_age_s()) {
        log_.info("first step finished {:.2f} s after the process started", *age_s);
        if (leads_) metrics_->event("first_step", {{"seconds", *age_s}});
      }
      first = false;
      scale_.peak_flops = peak_.improve();
      if (leads_) metrics_->set_peak(scale_.peak_flops);
      check_.begin(sources_, counters_.step - 1);  // the first step would be slowed down by it
    }
    if (every(recipe_.train.eval_every)) evaluate();
    save_due_ |= every(recipe_.checkpoint.every);
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
  traced_.finish();
  save_the_end(outcome);
  check_.report_rest();
  while_leader(ranks_, "curves", [&] { metrics_->show_curves(); });
  return outcome;
}

void Run::save_the_end(Outcome outcome) {
  const bool any = counters_.step > 0;  // a run without a step has nothing that it could lose
  if (outcome == Outcome::kPreempted) {
    const std::string signal = first_said(ranks_, signals_.name(), "signal");
    if (any)
      log_.info("{}: saving step {} and stopping", signal, counters_.step);
    else
      log_.info("{}: stopping; no step is done, and nothing is saved", signal);
  }
  check_.before_save();
  if (any) saves_->finish(counters_, health_.state(), cursor_);
}

// Lets go of what a slow disk may take long to close, with no rank waiting for another meanwhile.
void Run::close() {
  on_threads(ranks_, "end", [&] {
    saves_.reset();
    metrics_.reset();
    check_.stop();
  });
}

// A person and the other ranks hear of the error before this rank waits for anything.
void Run::leave(const std::exception_ptr& error) {
  const bool told = ranks_.fail(error);
  if (saves_) saves_->give_up(told ? "" : report_of(error).message);
}

bool Run::step() {
  const auto start = Clock::now();
  const double stall_before = prefetch_->stall_s();
  batches_.resize(size_t(prefetch_->batches_per_step()));
  micro_batches_.clear();
  for (data::Batch& batch : batches_) {
    prefetch_->next(batch);
    micro_batches_.push_back(micro_batch(batch));
  }
  stops_.begin_step();
  try {
    trainer_.run(counters_.step, micro_batches_,
                 [&](int64_t number) { stops_.after_micro_batch(number); });
  } catch (const StepLeft&) {
    trainer_.skip();  // cursor_ and counters_ are those of the step before
    return false;
  }
  cursor_ = batches_.back().state;
  trainer_.reduce();
  StepStats stats = trainer_.measure();
  stats.loss = unsigned_nan(stats.loss);
  stats.gradient_norm = unsigned_nan(stats.gradient_norm);
  const double lr = trainer_.learning_rate(counters_.step);
  const bool has_targets = stats.num_targets > 0;
  const Verdict verdict = has_targets
                              ? health_.judge(counters_.step + 1, stats.loss, stats.gradient_norm)
                              : Verdict{false, "none of its tokens has a target", ""};
  const auto before = Clock::now();
  saves_->before_update();  // the save of an earlier step still copies what apply() changes
  blocked_s_ += seconds_since(before);
  applied_ = verdict.apply;
  applied_ ? trainer_.apply(stats) : trainer_.skip();
  ++counters_.step;
  const int64_t tokens = recipe_.train.global_batch * recipe_.data.sequence_length;
  counters_.samples += recipe_.train.global_batch;
  counters_.tokens += tokens;
  report_epochs();
  if (!verdict.apply) skip(stats, verdict);
  if (!verdict.level.empty())
    log_.info("step {} is applied, as a new level and no spike: {}", counters_.step, verdict.level);

  StepRow row{.step = counters_.step,
              .samples = counters_.samples,
              .tokens = counters_.tokens,
              .loss = stats.loss,
              .lr = lr,
              .gradient_norm = stats.gradient_norm,
              .aux_loss = stats.aux_loss,
              .z_loss = stats.z_loss,
              .expert_rounds = stats.expert_rounds,
              .entropy = stats.entropy,
              .max_load = stats.max_load,
              .skipped = health_.skipped(),
              .non_finite = health_.non_finite(),
              .stall_s = prefetch_->stall_s() - stall_before,
              .checkpoint_blocked_s = blocked_s_,
              .applied = verdict.apply,
              .has_targets = has_targets};
  row.step_s = seconds_since(start);
  counters_.seconds += row.step_s;
  row.tokens_per_s = double(tokens) / row.step_s;
  row.tflops = row.tokens_per_s * scale_.flop_per_token * 1e-12;
  row.mfu = row.tokens_per_s * scale_.flop_per_token / scale_.peak_flops;
  const MemoryCounts memory = allocator_.counts();
  row.memory_peak_bytes = memory.total.peak_bytes;
  row.num_allocations = memory.num_allocations;
  if (leads_) metrics_->step(row);
  blocked_s_ = 0.0;
  if (!verdict.apply && has_targets)
    give_up_over_budget();  // the row of the step is written already
  return true;
}

// Ends the run, once the budget of skipped steps is used up.
void Run::give_up_over_budget() {
  const std::string problem = health_.over_budget();
  if (problem.empty()) return;
  const int64_t newest = saves_->newest_step();
  ASHLAR_FAIL(kNumeric, "{}; {}", problem,
              newest < 0 ? "there is no checkpoint"
                         : fmt::format("the last good checkpoint, step {}, is untouched", newest));
}

void Run::report_epochs() {
  for (const EpochBegun& begun : epochs_->advance(cursor_)) {
    log_.info(
        "step {}: epoch {} of {} begins: its {} samples begin again{}", counters_.step, begun.epoch,
        begun.dataset, format_thousands(begun.samples),
        begun.steps >= kLongEpoch
            ? ""
            : fmt::format(", every {:.1f} steps; later epochs of it are not told", begun.steps));
    if (leads_)
      metrics_->event("epoch", {{"step", counters_.step},
                                {"dataset", begun.dataset},
                                {"epoch", begun.epoch},
                                {"samples", begun.samples}});
  }
}

void Run::skip(const StepStats& stats, const Verdict& verdict) {
  // The samples of a step are the next global batch of numbers, in some order (data/loader.h).
  std::vector<int64_t> samples(size_t(recipe_.train.global_batch));
  std::iota(samples.begin(), samples.end(),
            data::next_sample(cursor_) - recipe_.train.global_batch);
  const std::string culprit =
      std::isfinite(stats.gradient_norm)
          ? ""
          : first_said(ranks_, trainer_.first_bad_gradient(), "non-finite gradient");
  const bool tells = stats.num_targets > 0 || !std::exchange(told_of_no_targets_, true);
  if (tells)
    log_.warn("step {} is skipped: {}{}{}; {}{}", counters_.step, verdict.reason,
              culprit.empty() ? "" : "; first non-finite gradient ", culprit, named(samples),
              stats.num_targets > 0 ? "" : "; more such steps are told in metrics.jsonl alone");
  if (!leads_) return;
  metrics_->event("skip", {{"step", counters_.step},
                           {"reason", verdict.reason},
                           {"first_bad_gradient", culprit},
                           {"samples", samples}});
  metrics_->flush();
}

void Run::evaluate() {
  if (sources_.validation.empty()) return;
  const auto start = Clock::now();
  data::Loader loader(sources_.validation,
                      validation_options(recipe_, sources_.validation, tokenizer_.get(), reader()));
  double sum = 0.0;
  int64_t count = 0;
  data::Batch batch;
  for (int64_t i = 0; i < loader.num_batches(); ++i) {
    loader.next(batch);
    if (stops_.asked_in_evaluation(i))
      return log_.info("the evaluation after step {} is left undone", counters_.step);
    const LossSum losses = trainer_.evaluate(micro_batch(batch));
    sum += losses.sum;
    count += int64_t(losses.count);
  }
  if (leads_)
    metrics_->evaluation(counters_.step, unsigned_nan(sum / double(count)), count,
                         seconds_since(start));
}

void Run::save() {
  check_.before_save();
  const auto start = Clock::now();
  saves_->save(counters_, health_.state(), cursor_);
  blocked_s_ += seconds_since(start);
}

// Not within a row of skipped steps: the starts that continued there would end as soon as this one.
bool Run::save_if_due() {
  if (!save_due_ || !applied_) return false;
  save_due_ = false;
  save();
  return true;
}

}  // namespace

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
