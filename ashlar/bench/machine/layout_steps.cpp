#include "ashlar/bench/machine/layout_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/bench/machine/foreign_share.h"
#include "ashlar/bench/ranks.h"
#include "ashlar/core/error.h"
#include "ashlar/core/statistics.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan.h"

namespace ashlar::bench {
namespace {

bool is_legal(const std::string& keys, int num_ranks,
              const std::function<Recipe(const std::string&)>& recipe_of) {
  try {
    const Recipe recipe = recipe_of(keys);
    train::plan_run(recipe, nn::resolve_precision(recipe.train.precision), num_ranks, 1, 0);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) throw;
    return false;
  }
}

}  // namespace

std::vector<std::string> layouts_to_calibrate(
    int num_ranks, size_t most, const std::function<Recipe(const std::string& keys)>& recipe_of) {
  const std::string n = std::to_string(num_ranks);
  const std::vector<std::string> meshes = {
      "parallel.zero=0",  "parallel.zero=1 parallel.overlap=false",
      "parallel.tp=" + n, "parallel.cp=" + n,
      "parallel.pp=" + n, "parallel.zero=0 parallel.overlap=false",
      "parallel.zero=3",  "parallel.tsp=" + n,
      "parallel.zero=1",  "parallel.cp=" + n + " parallel.cp_exchange=ring",
      "parallel.zero=2",  "parallel.cp=" + n + " parallel.cp_exchange=all_to_all",
  };
  const int64_t rows = recipe_of("").train.micro_batch;
  std::vector<std::string> layouts;
  for (const std::string& mesh : meshes)
    for (int64_t micro_batch = rows; micro_batch >= 1 && layouts.size() < most; micro_batch /= 2) {
      const std::string keys = fmt::format("train.micro_batch={} {}", micro_batch, mesh);
      if (!is_legal(keys, num_ranks, recipe_of)) continue;
      // A pipeline wants several micro-batches for each of its stages.
      if (mesh.find("pp=") != mesh.npos && micro_batch > 1 &&
          recipe_of(keys).train.global_batch / micro_batch < 2 * num_ranks)
        continue;
      layouts.push_back(keys);
      break;
    }
  return layouts;
}

std::vector<LayoutSteps> measure_layout_steps(std::span<const Layout> layouts,
                                              const train::RankResources& resources, int64_t steps,
                                              int64_t rounds, const std::function<void()>& done) {
  constexpr int kMostTries = 3;
  RanksOptions options;
  options.steps = steps;
  std::vector<LayoutSteps> result(layouts.size());
  std::vector<std::vector<double>> times(layouts.size());
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < layouts.size(); ++i) {
      double step_s = 0, foreign = 0;
      for (int attempt = 0; attempt < kMostTries; ++attempt) {
        ForeignWatch watch(resources.ranks);
        step_s = measure_ranks(layouts[i].recipe, resources, options).step.median;
        foreign = watch.end().shown();
        if (foreign <= machine::kMaxForeignShare) break;
      }
      times[i].push_back(step_s);
      result[i].foreign_share = std::max(result[i].foreign_share, foreign);
      if (resources.ranks.rank() == 0) done();
    }
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Summary summary = summarize(times[i]);
    result[i].step_s = summary.median;
    result[i].spread = summary.max / summary.min - 1;
  }
  return result;
}

}  // namespace ashlar::bench
