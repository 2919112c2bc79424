#include "ashlar/eval/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ashlar::eval {
namespace {

// The ids of the largest logits, of equal ones the lowest ids.
std::vector<int32_t> largest(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min(count, int64_t(ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float of_a = logits[size_t(a)], of_b = logits[size_t(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  ids.erase(end, ids.end());
  return ids;
}

}  // namespace

void TokenScores::add(std::span<const float> logits, int32_t id) {
  const auto top = std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double(logit) - double(*top));
  const double log_sum = double(*top) + std::log(sum);
  const auto logprob_of = [&](int32_t each) { return double(logits[size_t(each)]) - log_sum; };
  TokenScore score{
      .id = id, .logprob = logprob_of(id), .is_likeliest = int32_t(top - logits.begin()) == id};
  if (num_likely > 0)
    for (const int32_t each : largest(logits, num_likely))
      score.likely.push_back({each, logprob_of(each)});
  tokens.push_back(std::move(score));
}

}  // namespace ashlar::eval
