#include "ashlar/train/health.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace ashlar::train {

Health::Health(const HealthSpec& spec)
    : spec_(spec), losses_(size_t(spec.window)), norms_(size_t(spec.window)) {}

std::string Health::spike(double loss, double norm, const Largest& largest, Of of) const {
  // This runs in every step, so it makes no text unless there is a spike.
  const auto named = [&] {
    return of == Of::kWindow ? fmt::format("of the last {} steps", spec_.window)
                             : std::string("before the skip");
  };
  if (loss > largest.loss + spec_.max_loss_rise)
    return fmt::format(
        "loss {:.4g} is more than {} (health.max_loss_rise) above the largest {}, {:.4g}", loss,
        spec_.max_loss_rise, named(), largest.loss);
  if (norm > largest.norm * spec_.max_norm_ratio)
    return fmt::format(
        "gradient norm {:.4g} is more than {} (health.max_norm_ratio) times the largest {}, {:.4g}",
        norm, spec_.max_norm_ratio, named(), largest.norm);
  return "";
}

StepVerdict Health::judge(int64_t step, double loss, double gradient_norm) {
  StepVerdict verdict;
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    verdict.reason = fmt::format("loss is {}, gradient norm is {}", loss, gradient_norm);
    ++state_.non_finite;
    ++state_.consecutive;
  } else {
    state_.consecutive = 0;
    if (losses_.full()) {
      const Largest largest{losses_.largest(), norms_.largest()};
      verdict.reason = spike(loss, gradient_norm, largest, Of::kWindow);
      if (verdict.reason.empty()) {
        if (before_) verdict.level = spike(loss, gradient_norm, *before_, Of::kBeforeSkip);
        before_.reset();
      } else if (!before_) {
        before_ = largest;
      }
    }
    losses_.add(loss);
    norms_.add(gradient_norm);
  }
  verdict.apply = verdict.reason.empty();
  std::erase_if(state_.recent_skips, [&](int64_t skipped) { return skipped <= step - 1000; });
  if (!verdict.apply) {
    ++state_.skipped;
    state_.recent_skips.push_back(step);
  }
  return verdict;
}

void Health::pass(const HarmfulStep& step) {
  std::vector<int64_t>& all = state_.harmful;
  all.insert(all.end(), step.samples.begin(), step.samples.end());
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  std::erase(state_.recent_skips, step.step);
}

bool Health::passes(int64_t first_sample, int64_t num_samples) const {
  const auto next = std::ranges::lower_bound(state_.harmful, first_sample);
  return next != state_.harmful.end() && *next < first_sample + num_samples;
}

std::string Health::over_budget() const {
  if (state_.consecutive > 0 && state_.consecutive >= spec_.max_consecutive_skips)
    return fmt::format(
        "{} steps in a row were skipped because they were not finite "
        "(health.max_consecutive_skips): lower optim.lr or look at the samples named above",
        state_.consecutive);
  const auto recent = int64_t(state_.recent_skips.size());
  if (recent > 0 && recent >= spec_.max_skips_per_1000)
    return fmt::format(
        "{} of the last 1000 steps were skipped (health.max_skips_per_1000): lower optim.lr, look "
        "at the samples named above, or raise the limits that decided",
        recent);
  return "";
}

HealthState Health::state() const {
  HealthState state = state_;
  state.losses.assign(losses_.values().begin(), losses_.values().end());
  state.norms.assign(norms_.values().begin(), norms_.values().end());
  state.loss_count = int64_t(losses_.count());
  state.norm_count = int64_t(norms_.count());
  return state;
}

void Health::restore(const HealthState& state) {
  state_ = state;
  losses_.restore(state.losses, size_t(state.loss_count));
  norms_.restore(state.norms, size_t(state.norm_count));
}

void Health::forget_values() {
  losses_ = norms_ = Window(size_t(spec_.window));
  before_.reset();
}

}  // namespace ashlar::train
