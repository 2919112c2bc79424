#include "ashlar/train/epochs.h"

#include <algorithm>

#include "ashlar/data/blend.h"

namespace ashlar::train {
namespace {

int64_t epoch_of(const data::LoaderState& state, size_t dataset, int64_t samples) {
  const int64_t taken = state.taken_before[dataset] + state.counts[dataset];
  return std::max<int64_t>(0, taken - 1) / samples + 1;
}

}  // namespace

Epochs::Epochs(std::span<const data::Source> sources, const data::LoaderState& state) {
  std::vector<double> weights;
  for (const data::Source& source : sources) weights.push_back(source.weight);
  weights = data::normalized_weights(weights);
  for (size_t d = 0; d < sources.size(); ++d) {
    const int64_t samples = sources[d].samples.size();
    datasets_.push_back({sources[d].prefix(), samples, epoch_of(state, d, samples),
                         double(samples) / (weights[d] * double(state.global_batch))});
  }
}

std::vector<EpochBegun> Epochs::advance(const data::LoaderState& state) {
  std::vector<EpochBegun> begun;
  for (size_t d = 0; d < datasets_.size(); ++d) {
    Dataset& dataset = datasets_[d];
    const int64_t before = dataset.epoch;
    dataset.epoch = epoch_of(state, d, dataset.samples);
    if (dataset.epoch == before) continue;
    if (dataset.steps >= kLongEpoch)
      begun.push_back({dataset.prefix, dataset.epoch, dataset.samples, dataset.steps});
    else if (before == 1)
      begun.push_back({dataset.prefix, 2, dataset.samples, dataset.steps});
  }
  return begun;
}

}  // namespace ashlar::train
