#include "ashlar/eval/sampler.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"

namespace ashlar::eval {

void validate(const SamplingSpec& spec) {
  ASHLAR_REQUIRE(std::isfinite(spec.temperature) && spec.temperature >= 0.0, kConfig,
                 "--temperature is {}; expected 0 (greedy) or more", spec.temperature);
  ASHLAR_REQUIRE(spec.top_k >= 0, kConfig, "--top-k is {}; expected 0 (all) or more", spec.top_k);
  ASHLAR_REQUIRE(spec.top_p > 0.0 && spec.top_p <= 1.0, kConfig,
                 "--top-p is {}; expected above 0, at most 1", spec.top_p);
}

int32_t argmax(std::span<const float> logits) {
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t sample(const SamplingSpec& spec, std::span<const float> logits, int64_t position,
               std::vector<std::pair<float, int32_t>>& scratch) {
  if (spec.temperature == 0.0) return argmax(logits);
  scratch.clear();
  for (size_t id = 0; id < logits.size(); ++id) scratch.emplace_back(logits[id], int32_t(id));
  const auto larger = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  size_t kept = scratch.size();
  if (spec.top_k > 0) kept = std::min(kept, size_t(spec.top_k));
  std::partial_sort(scratch.begin(), scratch.begin() + std::ptrdiff_t(kept), scratch.end(), larger);
  const double largest = scratch[0].first;
  double total = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    scratch[i].first = float(std::exp((double(scratch[i].first) - largest) / spec.temperature));
    total += double(scratch[i].first);
  }
  if (spec.top_p < 1.0) {
    double sum = 0.0;
    for (size_t i = 0; i < kept; ++i) {
      sum += double(scratch[i].first);
      if (sum >= spec.top_p * total) kept = i + 1;
    }
    total = sum;
  }
  double left = Rng(spec.seed, "sample").uniform(spec.prompt << 32 | uint64_t(position)) * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= double(scratch[i].first);
    if (left < 0.0) return scratch[i].second;
  }
  return scratch[kept - 1].second;
}

}  // namespace ashlar::eval
