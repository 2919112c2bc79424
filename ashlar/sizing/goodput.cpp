#include "ashlar/sizing/goodput.h"

#include <algorithm>
#include <cmath>

namespace ashlar::sizing {
namespace {

// Seconds from one save to the next, failures included.
double interval_with_failures(const FailingRun& run) {
  const double rate = run.failures_per_s, trained = run.interval_s + run.save_wait_s;
  if (rate <= 0) return trained;
  return std::exp(rate * (run.restart_s + run.commit_s)) * std::expm1(rate * trained) / rate;
}

}  // namespace

GoodputShares goodput(const FailingRun& run) {
  const double all = interval_with_failures(run);
  GoodputShares shares;
  shares.useful = run.interval_s / all;
  shares.saves = run.save_wait_s / all;
  // A restart takes restart_s, or ends early by the next failure: (1 - exp(-rate R)) / rate.
  shares.restarts = -std::expm1(-run.failures_per_s * run.restart_s);
  shares.recomputed = std::max(0.0, 1 - shares.useful - shares.saves - shares.restarts);
  return shares;
}

double best_interval(FailingRun run) {
  // The useful share has one maximum over the interval: golden sections of its logarithm.
  constexpr double kGolden = 0.6180339887498949;
  const auto useful = [&](double log_interval) {
    run.interval_s = std::exp(log_interval);
    return goodput(run).useful;
  };
  double low = std::log(1e-3), high = std::log(30 * 86400.0);
  for (int i = 0; i < 100; ++i) {
    const double left = high - kGolden * (high - low), right = low + kGolden * (high - low);
    if (useful(left) < useful(right))
      low = left;
    else
      high = right;
  }
  return std::max(run.commit_s, std::exp((low + high) / 2));
}

int64_t spares_for(double failures_per_s, double away_s, double share) {
  // Nodes that are away are Poisson distributed, whatever the distribution of their absence.
  const double mean = failures_per_s * away_s;
  if (mean <= 0) return 0;
  double log_probability = -mean, sum = std::exp(log_probability);  // in logarithms: no underflow
  int64_t spares = 0;
  while (sum < share) {
    ++spares;
    log_probability += std::log(mean / double(spares));
    sum += std::exp(log_probability);
  }
  return spares;
}

}  // namespace ashlar::sizing
