#include "ashlar/train/run_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/train/machine.h"
#include "ashlar/train/run_recipe.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

std::string named(const std::vector<int64_t>& samples) {
  return samples.size() == 1
             ? fmt::format("its sample is {}", samples.front())
             : fmt::format("its samples are {} to {}", samples.front(), samples.back());
}

}  // namespace

void RunReport::begin(const RunScale& scale, const RunMachine& machine, int64_t after_step,
                      bool resumed) {
  const ModelSpec model = model_of(recipe_.model);
  for (int64_t block = 0; block < model.num_blocks(); ++block)
    if (std::holds_alternative<MoeSpec>(model.blocks[size_t(block)].feed_forward))
      expert_blocks_.push_back(block);
  while_leader(ranks_, "run directory", [&] {
    write_run_recipe(files_, recipe_);
    metrics_ = std::make_unique<Metrics>(files_, recipe_.train.run_dir, log_, scale,
                                         recipe_.train.log_every, after_step);
    metrics_->event("start", {{"step", after_step},
                              {"isa", machine.isa},
                              {"cpu", processor_name()},
                              {"cpus", machine.cpus},
                              {"memory_bytes", memory_limit_bytes()},
                              {"host", host_name()},
                              {"ranks", ranks_.size()},
                              {"threads", machine.threads}});
    if (resumed) metrics_->event("resume", {{"step", after_step}});
  });
}

void RunReport::first_step() {
  const auto age_s = process_age_s();
  if (!age_s) return;
  log_.info("first step finished {:.2f} s after the process started", *age_s);
  if (metrics_) metrics_->event("first_step", {{"seconds", *age_s}});
}

void RunReport::memory(int64_t step, const MemoryCounts& memory) {
  if (!metrics_) return;
  nlohmann::ordered_json tags = nlohmann::ordered_json::object();
  for (int tag = 0; tag < kNumTags; ++tag)
    if (const int64_t bytes = memory.tags[size_t(tag)].peak_bytes; bytes > 0)
      tags[std::string(name_of(Tag(tag)))] = bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  metrics_->event("memory", {{"step", step},
                             {"tags", tags},
                             {"resident_bytes", int64_t{usage.ru_maxrss} * 1024},
                             {"ranks_in_process", ranks_.shares_memory() ? ranks_.size() : 1}});
}

void RunReport::set_peak(double peak_flops) {
  if (metrics_) metrics_->set_peak(peak_flops);
}

void RunReport::step(const StepRow& row) {
  if (metrics_) metrics_->step(row);
}

void RunReport::expert_loads(int64_t step, std::span<const std::span<const int64_t>> loads) {
  const int64_t every = recipe_.train.expert_loads_every;
  if (!metrics_ || loads.empty() || every == 0) return;
  if (step % every != 0 && step != 1 && step != recipe_.train.steps) return;
  metrics_->expert_loads(step, expert_blocks_, loads);
}

void RunReport::new_level(int64_t step, const StepVerdict& verdict) {
  log_.info("step {} is applied, as a new level and no spike: {}", step, verdict.level);
}

void RunReport::skipped(int64_t step, const StepStats& stats, const StepVerdict& verdict,
                        const std::vector<int64_t>& samples, const std::string& bad_gradient) {
  const bool tells = stats.num_targets > 0 || !std::exchange(told_of_no_targets_, true);
  if (tells)
    log_.warn("step {} is skipped: {}{}{}; {}{}", step, verdict.reason,
              bad_gradient.empty() ? "" : "; first non-finite gradient ", bad_gradient,
              named(samples),
              stats.num_targets > 0 ? "" : "; more such steps are told in metrics.jsonl alone");
  if (!metrics_) return;
  metrics_->event("skip", {{"step", step},
                           {"reason", verdict.reason},
                           {"first_bad_gradient", bad_gradient},
                           {"targets", stats.num_targets},
                           {"samples", samples}});
  metrics_->flush();
}

void RunReport::passed(int64_t step, const std::vector<int64_t>& samples) {
  log_.info("step {} is passed without an update, as skips.jsonl says; {}", step, named(samples));
  if (metrics_) metrics_->event("pass", {{"step", step}, {"samples", samples}});
}

void RunReport::epochs(int64_t step, const std::vector<EpochBegun>& begun) {
  for (const EpochBegun& epoch : begun) {
    log_.info(
        "step {}: epoch {} of {} begins: its {} samples begin again{}", step, epoch.epoch,
        epoch.dataset, format_thousands(epoch.samples),
        epoch.steps >= kLongEpoch
            ? ""
            : fmt::format(", every {:.1f} steps; later epochs of it are not told", epoch.steps));
    if (metrics_)
      metrics_->event("epoch", {{"step", step},
                                {"dataset", epoch.dataset},
                                {"epoch", epoch.epoch},
                                {"samples", epoch.samples}});
  }
}

void RunReport::evaluation(int64_t step, double loss, int64_t tokens, double seconds) {
  if (metrics_) metrics_->evaluation(step, loss, tokens, seconds);
}

void RunReport::show_curves() {
  while_leader(ranks_, "curves", [&] { metrics_->show_curves(); });
}

}  // namespace ashlar::train
