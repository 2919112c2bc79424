#include "ashlar/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ashlar/core/error.h"

namespace ashlar::data {

int64_t blend_choice(std::span<const double> weights, int64_t sample,
                     std::span<const int64_t> counts, std::span<const int64_t> sizes) {
  ASHLAR_ASSERT(weights.size() == counts.size());
  const auto scale = static_cast<double>(std::max<int64_t>(sample, 1));
  int64_t best = -1;
  double best_deficit = 0;
  for (size_t d = 0; d < weights.size(); ++d) {
    if (!sizes.empty() && counts[d] == sizes[d]) continue;
    const double deficit = weights[d] * scale - static_cast<double>(counts[d]);
    if (best < 0 || deficit > best_deficit) {
      best = static_cast<int64_t>(d);
      best_deficit = deficit;
    }
  }
  ASHLAR_ASSERT(best >= 0);
  return best;
}

std::vector<double> normalized_weights(std::span<const double> weights) {
  for (const double weight : weights)
    ASHLAR_REQUIRE(std::isfinite(weight) && weight > 0, kConfig,
                   "a dataset's weight is {}; expected a positive number", weight);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  ASHLAR_REQUIRE(std::isfinite(sum), kConfig, "the datasets' weights add up to {}; expected less",
                 sum);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

}  // namespace ashlar::data
