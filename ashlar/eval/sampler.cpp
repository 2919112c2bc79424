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
  ASHLAR_REQUIRE(spec.min_p >= 0.0 && spec.min_p <= 1.0, kConfig, "--min-p is {}; expected 0 to 1",
                 spec.min_p);
  ASHLAR_REQUIRE(std::isfinite(spec.repetition_penalty) && spec.repetition_penalty > 0.0, kConfig,
                 "--repetition-penalty is {}; expected above 0 (1: none)", spec.repetition_penalty);
}

namespace {

using Candidate = std::pair<float, int32_t>;  // logit and id

bool is_less(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first < b.first : a.second > b.second;
}

// Candidates from the largest down, sorted only as far as they are asked for: few are, and sorting
// a whole vocabulary takes longer than a small model's pass.
class FromLargest {
 public:
  explicit FromLargest(std::vector<Candidate>& candidates)
      : candidates_(candidates), heap_end_(candidates.size()) {
    std::make_heap(candidates.begin(), candidates.end(), is_less);
  }
  const Candidate& operator[](size_t rank) {
    const size_t at = candidates_.size() - 1 - rank;
    for (; heap_end_ > at; --heap_end_)
      std::pop_heap(candidates_.begin(), candidates_.begin() + std::ptrdiff_t(heap_end_), is_less);
    return candidates_[at];
  }

 private:
  std::vector<Candidate>& candidates_;
  size_t heap_end_;  // from here on they are sorted
};

}  // namespace

int32_t argmax(std::span<const float> logits) {
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Repetition::Repetition(double penalty, std::span<const int32_t> ids) : penalty_(penalty) {
  if (penalty_ == 1.0) return;
  ids_.assign(ids.begin(), ids.end());
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
}

void Repetition::add(int32_t id) {
  if (penalty_ == 1.0) return;
  const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
  if (at == ids_.end() || *at != id) ids_.insert(at, id);
}

std::span<const float> Repetition::penalized(std::span<const float> logits,
                                             std::vector<float>& scratch) const {
  if (penalty_ == 1.0) return logits;
  scratch.assign(logits.begin(), logits.end());
  for (const int32_t id : ids_) {
    float& logit = scratch[size_t(id)];
    logit = float(logit < 0 ? double(logit) * penalty_ : double(logit) / penalty_);
  }
  return scratch;
}

int32_t sample(const SamplingSpec& spec, std::span<const float> logits, int64_t position,
               std::vector<std::pair<float, int32_t>>& scratch) {
  if (spec.temperature == 0.0) return argmax(logits);
  scratch.clear();
  for (size_t id = 0; id < logits.size(); ++id) scratch.emplace_back(logits[id], int32_t(id));
  FromLargest candidates(scratch);
  const double largest = candidates[0].first;
  const auto weight = [&](const Candidate& candidate) {
    return double(float(std::exp((double(candidate.first) - largest) / spec.temperature)));
  };
  size_t kept = scratch.size();
  if (spec.top_k > 0) kept = std::min(kept, size_t(spec.top_k));
  double total = 0.0;
  for (size_t i = 0; i < kept; ++i)
    total += weight(kept == scratch.size() ? scratch[i] : candidates[i]);
  if (spec.top_p < 1.0) {
    double sum = 0.0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weight(candidates[i]);
      if (sum >= spec.top_p * total) kept = i + 1;
    }
    total = sum;
  }
  if (spec.min_p > 0.0) {
    size_t likely = 0;
    double sum = 0.0;
    for (; likely < kept; ++likely) {
      const double each = weight(candidates[likely]);
      if (each < spec.min_p) break;
      sum += each;
    }
    kept = likely, total = sum;
  }
  double left = Rng(spec.seed, "sample").uniform(spec.prompt << 32 | uint64_t(position)) * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weight(candidates[i]);
    if (left < 0.0) return candidates[i].second;
  }
  return candidates[kept - 1].second;
}

}  // namespace ashlar::eval
