// Chooses the dataset of the next sample: the one that lags most behind its weight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::data {

// argmax over d of weights[d] * max(sample, 1) - counts[d], ties to the lowest d, where counts[d]
// is the number of samples before number `sample` that came from d.  Weights 0.5 0.3 0.2 give
// 0 1 2 0 1 0 2 0 1 0.  weights sum to 1.
//
// sizes, if not empty: dataset d is skipped once sizes[d] samples came from it.  One must have
// more.
int64_t blend_choice(std::span<const double> weights, int64_t sample,
                     std::span<const int64_t> counts, std::span<const int64_t> sizes = {});

// Divides by the sum.  kConfig if a weight is not finite and positive.
std::vector<double> normalized_weights(std::span<const double> weights);

}  // namespace ashlar::data
