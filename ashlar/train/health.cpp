#include "ashlar/train/health.h"

#include <cmath>

#include "ashlar/core/error.h"

namespace ashlar::train {
namespace {

std::string spike(const char* what, double value, double z, int64_t window) {
  return fmt::format("{} {:.4g} is {:.1f} deviations off the last {} steps", what, value, z,
                     window);
}

}  // namespace

Health::Health(const HealthSpec& spec)
    : spec_(spec), losses_(size_t(spec.window)), norms_(size_t(spec.window)) {}

Verdict Health::judge(int64_t step, double loss, double gradient_norm) {
  Verdict verdict;
  const double z_loss = losses_.z_score(loss), z_norm = norms_.z_score(gradient_norm);
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    verdict = {false, fmt::format("loss is {}, gradient norm is {}", loss, gradient_norm)};
    ++state_.non_finite;
  } else if (z_loss > spec_.max_z) {
    verdict = {false, spike("loss", loss, z_loss, spec_.window)};
  } else if (z_norm > spec_.max_z) {
    verdict = {false, spike("gradient norm", gradient_norm, z_norm, spec_.window)};
  }
  std::erase_if(state_.recent_skips, [&](int64_t skipped) { return skipped <= step - 1000; });
  if (verdict.apply) {
    losses_.add(loss);
    norms_.add(gradient_norm);
    state_.consecutive = 0;
  } else {
    ++state_.skipped;
    ++state_.consecutive;
    state_.recent_skips.push_back(step);
  }
  return verdict;
}

void Health::check_budget() const {
  ASHLAR_REQUIRE(
      state_.consecutive < spec_.max_consecutive_skips, kNumeric,
      "{} steps in a row were skipped (health.max_consecutive_skips); the last good checkpoint is "
      "untouched: lower optim.lr or look at the samples named above",
      state_.consecutive);
  ASHLAR_REQUIRE(int64_t(state_.recent_skips.size()) < spec_.max_skips_per_1000, kNumeric,
                 "{} of the last 1000 steps were skipped (health.max_skips_per_1000); the last "
                 "good checkpoint "
                 "is untouched: lower optim.lr or look at the samples named above",
                 state_.recent_skips.size());
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

}  // namespace ashlar::train
