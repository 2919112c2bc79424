// How it works.  Each step of the constructor may refuse the run, and cheap checks come first.
// Nothing in the run's directory changes before every rank has accepted the recipe (barrier
// "start"), and no row is written before every rank has read the step that it continues from
// (barrier "resume").
#include <utility>

#include "ashlar/comm/agree.h"
#include "ashlar/core/skip_list.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/alike.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/changes.h"
#include "ashlar/train/first_weights.h"
#include "ashlar/train/run.h"
#include "ashlar/train/run_pulse.h"
#include "ashlar/train/start_checks.h"
#include "ashlar/train/start_report.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::train {
namespace {

// All ranks compute alike: as rank 0's machine does if train.precision is `auto`.
DType agreed_compute(Precision precision, bool on_gpu, comm::Group& ranks) {
  if (on_gpu) return compute_on_gpu(precision);
  return DType(from_leader(ranks, int64_t(nn::resolve_precision(precision)), "precision"));
}

// The recipe with the choices that it leaves to the machine, precision and size of buckets, so that
// a later start can compare the saved ones with its own.
Recipe with_choices(const Recipe& recipe, DType compute, FileSystem& files, comm::Group& ranks,
                    Log& log) {
  Recipe chosen = with_bucket_bytes(files, recipe, ranks);
  chosen.train.precision = nn::precision_of(compute);
  if (chosen.parallel.bucket_bytes != recipe.parallel.bucket_bytes)
    log.info("parallel.bucket_bytes is auto: {}", chosen.parallel.bucket_bytes);
  return chosen;
}

}  // namespace

Run::Run(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
         const RankResources& resources)
    : gpu_(choose_gpu(recipe, resources.ranks.size(), log)),
      compute_(agreed_compute(recipe.train.precision, gpu_.has_value(), resources.ranks)),
      recipe_(with_choices(recipe, compute_, files, resources.ranks, log)),
      files_(files),
      log_(log),
      signals_(signals),
      resources_(resources),
      ranks_(resources.ranks),
      leads_(ranks_.rank() == 0),
      isa_(gpu_ ? gpu_->architecture : std::string(kernels::name_of(kernels::isa()))),
      stops_(ranks_, signals, recipe_, resolve_parallel(recipe_, ranks_.size())),
      threads_(resources.num_threads),
      health_(recipe_.health),
      check_(ranks_, files, log),
      report_(recipe_, files, log, ranks_) {
  enter("planning memory");
  accept_plan();
  enter("taking memory");
  make_trainer();
  enter("opening data");
  open_data();
  check_storage();
  enter("measuring the peak");
  measure_peak();
  enter("comparing inputs");
  agree_on_inputs();
  show(ranks_, PulsePlace::kLoad);
  take_weights();
  ranks_.barrier("start").wait();  // no rank refuses the recipe: the run's directory may be touched
  enter("looking for checkpoints");
  open_checkpoints();
  enter("weights");
  resume();
  read_skips();
  if (PulseWriter* const pulse = ranks_.trace().pulse()) pulse->set_step(counters_.step);
  ranks_.barrier("resume").wait();  // no rank refuses the checkpoint
  enter("opening metrics");
  if (!finished()) begin();
  enter("first step: data");
}

void Run::enter(std::string_view part) const {
  if (resources_.timing) resources_.timing->enter(part);
}

void Run::accept_plan() {
  plan_ = accepted_plan(recipe_, compute_, files_, resources_, device());
}

void Run::make_trainer() {
  first_weights_ = find_first_weights(files_, recipe_, ranks_, log_);
  if (!gpu_) products_ = read_product_table(files_, recipe_.train.machine);
  if (gpu_) gpu_memory_ = std::make_unique<GpuMemory>(plan_.memory.total.peak_bytes);
  if (plan_.save_slots > 0)
    side_copies_ =
        std::make_unique<kernels::gpu::SideCopies>(gpu_memory_->pinned(), plan_.save_slots);
  trainer_ = std::make_unique<Trainer>(recipe_, compute_, memory(), threads_, ranks_,
                                       plan_.step_memory, products_.get(), nullptr,
                                       device(gpu_ ? &gpu_memory_->stream() : nullptr));
  traced_ = std::make_unique<TracedSteps>(recipe_, files_, log_, trainer_->model().groups(),
                                          plan_.trace, resources_.local_ranks,
                                          device(gpu_ ? &gpu_memory_->stream() : nullptr));
}

Reader Run::reader() const {
  const parallel::RankModel& model = trainer_->model();
  return {model.groups().coordinate(parallel::Axis::kDp), model.parallel().dp};
}

void Run::open_data() {
  data_ = std::make_unique<RunData>(files_, recipe_, reader());
}

void Run::check_storage() {
  writer_ = std::make_unique<StateWriter>(*trainer_, models::Companions{}, isa_);
  while_leader(ranks_, "room for checkpoints",
               [&] { check_room(files_, recipe_, saved_bytes(*trainer_), log_); });
}

void Run::measure_peak() {
  peak_ = std::make_unique<Peak>(
      trainer_->context(), compute_, resources_, files_, recipe_.train.run_dir,
      gpu_ ? std::optional(kernels::gpu::peak_of(*gpu_, compute_)) : std::nullopt);
  const parallel::RankModel& model = trainer_->model();
  scale_ = {.steps = recipe_.train.steps,
            .flop_per_token = training_flop(recipe_),
            .peak_flops = peak_->find(),
            .has_experts = !model.all_step_loads().empty(),
            .has_router_losses = model.has_router_losses(),
            .shares_experts = model.parallel().ep > 1,
            .seconds_left = [this] { return stops_.seconds_left(); }};
  warn_of_start(recipe_, scale_, threads_.size(), resources_.local_ranks, resources_.num_cpus,
                log_);
}

void Run::agree_on_inputs() {
  require_same_inputs(ranks_, files_, recipe_, data_->sources(), data_->tokenizer(),
                      first_weights_);
  if (recipe_.data.verify) check_.prepare(data_->sources());
  loader_.emplace(data_->training());
}

void Run::take_weights() {
  if (!first_weights_) return;
  take_first_weights(files_, *first_weights_, ranks_, data_->sources().train, *trainer_, log_);
  if (recipe_.tune.trains_all()) return;
  base_ = models::base_model_of(files_, *first_weights_, recipe_.tune);
  writer_->take(*base_);
}

void Run::open_checkpoints() {
  saves_ = std::make_unique<Saves>(recipe_, files_, log_, ranks_, resources_.local_ranks, *writer_,
                                   side_copies_.get());
  log_.info("{}", describe_run(*trainer_, plan_, isa_, scale_.peak_flops, peak_->origin()));
  if (recipe_.health.weights_every > 0 && !trainer_->model().compares_copies())
    log_.warn("health.weights_every compares nothing: no ranks hold the same weights");
  if (recipe_.health.replay_every > 0 && !trainer_->model().replays())
    log_.warn("health.replay_every repeats nothing: there is one data-parallel replica");
  if (!resources_.placement.empty()) log_.info("placement: {}", resources_.placement);
  const std::string warmup = warmup_problem(recipe_);
  if (!warmup.empty()) log_.warn("{}", warmup);
  if (!data_->tokenizer())
    log_.info("the data names no tokenizer, nor does data.tokenizer: checkpoints hold none");
  report_dropped(data_->sources().train, recipe_.data.sequence_length, log_);
}

void Run::resume() {
  Restored saved;
  bool same_data = true;
  resumed_ = saves_->resume([&](const checkpoint::StepReader& reader) {
    saved = restore(reader, *trainer_, base_);
    counters_ = saved.counters;
    health_.restore(saved.health);
    same_data = loader_->restore(saved.loader, recipe_.data.allow_dataset_change);
  });
  if (leads_ && first_weights_ && !resumed_)
    saved.inherited = {models::companions_of(files_, *first_weights_),
                       models::place_of_companions(*first_weights_),
                       first_weights_->spec.eos_token_ids};
  if (leads_)
    writer_->take(run_companions(std::move(saved.inherited), model_of(recipe_.model),
                                 data_->tokenizer(), data_->sources().train, log_));
  if (!resumed_) return begin_from_weights();
  trainer_->weights_changed();
  if (finished())
    return log_.info("the run is finished: step {} of {} is done; raise train.steps to go on",
                     counters_.step, recipe_.train.steps);
  if (report_resumed(saved, *trainer_, isa_, same_data, log_)) health_.forget_values();
  if (!same_data) health_.forget_samples();
  if (!same_data) report_new_blend(data_->sources().train, loader_->state(), log_);
}

// Starts from the recipe's seed, or from the weights of init.model, which are loaded already.
void Run::begin_from_weights() {
  if (recipe_.init.model.empty()) return trainer_->initialize();
  ASHLAR_REQUIRE(first_weights_, kStorage,
                 "{}: its steps went away while this start looked at them; start again",
                 checkpoint_root(recipe_));
  trainer_->weights_changed();
}

// All ranks pass the same steps: rank 0 reads the list.
void Run::read_skips() {
  std::string text;
  while_leader(ranks_, "skips", [&] { text = read_skip_list(files_, recipe_.train.run_dir); });
  text = comm::text_from_leader(ranks_, text, "skips");
  for (const HarmfulStep& step : parse_skip_list(text, skip_list_path(recipe_.train.run_dir)))
    health_.pass(step);
}

void Run::begin() {
  report_.begin(scale_, {isa_, resources_.num_cpus, threads_.size()}, counters_.step, resumed_);
  on_threads(ranks_, "pulse", [&] {  // a slow disk may take long
    if (leads_ || !ranks_.shares_memory()) record_pulse(files_, recipe_.train.run_dir, log_);
  });
  data_->begin(*std::exchange(loader_, std::nullopt));
  saves_->begin(report_.metrics(), counters_, health_.state(), data_->cursor());
}

}  // namespace ashlar::train
