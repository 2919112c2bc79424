#include "ashlar/train/run_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
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

void RunReport::begin(const RunScale& scale, const std::string& isa, int64_t after_step,
                      bool resumed) {
  while_leader(ranks_, "run directory", [&] {
    write_run_recipe(files_, recipe_);
    metrics_ = std::make_unique<Metrics>(files_, recipe_.train.run_dir, log_, scale,
                                         recipe_.train.log_every, after_step);
    metrics_->event("start", {{"step", after_step}, {"isa", isa}});
    if (resumed) metrics_->event("resume", {{"step", after_step}});
  });
}

void RunReport::first_step() {
  const auto age_s = process_age_s();
  if (!age_s) return;
  log_.info("first step finished {:.2f} s after the process started", *age_s);
  if (metrics_) metrics_->event("first_step", {{"seconds", *age_s}});
}

void RunReport::set_peak(double peak_flops) {
  if (metrics_) metrics_->set_peak(peak_flops);
}

void RunReport::step(const StepRow& row) {
  if (metrics_) metrics_->step(row);
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
                           {"samples", samples}});
  metrics_->flush();
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
