#include "ashlar/train/short_steps.h"

namespace ashlar::train {
namespace {

// The same recipe with `micro_batches` micro-batches of each data rank in a step.
Recipe with_micro_batches(Recipe recipe, int64_t dp, int64_t micro_batches) {
  recipe.train.global_batch = micro_batches * recipe.train.micro_batch * dp;
  recipe.data.num_streams = recipe.train.global_batch;
  return recipe;
}

}  // namespace

std::optional<ShortSteps> short_steps(const Recipe& recipe, const ParallelSpec& p) {
  const int64_t all = recipe.train.global_batch / recipe.train.micro_batch / p.dp;
  const int64_t period = p.pp, full = 4 * p.pp * p.virtual_stages + 4;
  if (all < full + 4 * period) return std::nullopt;
  const int64_t first = full + (all - full) % period;
  return ShortSteps{with_micro_batches(recipe, p.dp, first),
                    with_micro_batches(recipe, p.dp, first + period), (all - first) / period};
}

}  // namespace ashlar::train
