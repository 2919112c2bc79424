#include "ashlar/bench/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "ashlar/bench/random_batch.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/report/plot.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"

namespace ashlar::bench {
namespace {

constexpr double kMiB = 1 << 20;
constexpr std::string_view kNoLayout = "(as the recipe)";

std::vector<std::string> overrides_of(const std::string& layout, int64_t length) {
  std::vector<std::string> overrides;
  for (const std::string& word : split(layout, ' '))
    if (!word.empty()) overrides.push_back(word);
  if (length > 0) overrides.push_back(fmt::format("data.sequence_length={}", length));
  return overrides;
}

// Trains as one rank, and returns the peak of its plan.
int64_t train_rank(const Recipe& recipe, const train::RankResources& resources, int64_t steps,
                   std::vector<double>& seconds) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const train::RunPlan plan = train::plan_run(recipe, compute, resources.ranks.size(),
                                              resources.num_threads, resources.ranks.rank());
  Threads threads(resources.num_threads);
  train::Trainer trainer(recipe, compute, resources.allocator, threads, resources.ranks,
                         plan.step_memory);
  trainer.initialize();
  const RandomBatch batch(trainer);
  for (int64_t i = 0; i < steps; ++i) {
    resources.ranks.barrier("bench").wait();
    const auto start = Clock::now();
    batch.step(trainer, i);
    if (i > 0 || steps == 1) seconds.push_back(seconds_since(start));
  }
  return plan.memory.total.peak_bytes;
}

MemoryCase measure(const Recipe& recipe, const MemoryOptions& options) {
  MemoryCase fullest;
  fullest.sequence_length = recipe.data.sequence_length;
  std::mutex mutex;
  const auto fail = [](std::string_view) {};  // called under a launcher only, which is refused
  const train::Start start{
      .num_ranks = options.num_ranks, .report = fail, .binding = options.binding};
  train::start_ranks(recipe, start, [&](const train::RankResources& resources) {
    std::vector<double> seconds;
    const int64_t planned = train_rank(recipe, resources, options.steps, seconds);
    const MemoryCounts counts = resources.allocator.counts();
    const std::lock_guard lock(mutex);
    if (resources.ranks.rank() == 0) fullest.step = summarize(seconds);
    if (counts.total.peak_bytes <= fullest.counts.total.peak_bytes) return;
    fullest.counts = counts;
    fullest.planned_bytes = planned;
  });
  return fullest;
}

size_t layout_width(const MemoryOptions& options) {
  size_t width = kNoLayout.size();
  for (const std::string& layout : options.layouts) width = std::max(width, layout.size());
  return width;
}

}  // namespace

std::vector<MemoryCase> measure_memory(
    const std::function<Recipe(const std::vector<std::string>& overrides)>& recipe_with,
    const MemoryOptions& options, const std::function<void(const MemoryCase&)>& done) {
  ASHLAR_REQUIRE(train::engine_of({options.num_ranks, {}}) != "mpi", kLaunch,
                 "bench memory starts its ranks itself, as threads; run it without a launcher");
  const std::vector<std::string> layouts =
      options.layouts.empty() ? std::vector<std::string>{""} : options.layouts;
  const std::vector<int64_t> lengths =
      options.lengths.empty() ? std::vector<int64_t>{0} : options.lengths;
  // All recipes are read before the first runs, so that a mistake in the last costs no time.  The
  // layouts of a length run one after another, since the speed of a machine drifts.
  std::vector<std::pair<std::string, Recipe>> recipes;
  for (const int64_t length : lengths)
    for (const std::string& layout : layouts) {
      recipes.emplace_back(layout, recipe_with(overrides_of(layout, length)));
      resolve_parallel(recipes.back().second, options.num_ranks);
    }
  std::vector<MemoryCase> cases;
  for (const auto& [layout, recipe] : recipes) {
    cases.push_back(measure(recipe, options));
    cases.back().layout = layout;
    done(cases.back());
  }
  return cases;
}

std::string memory_head(const MemoryOptions& options) {
  std::string text = fmt::format("{:<{}} {:>8} {:>10} {:>8}", "layout", layout_width(options),
                                 "length", "peak_MiB", "planned");
  for (int tag = 0; tag < kNumTags; ++tag) text += fmt::format(" {:>10}", name_of(Tag(tag)));
  return text + fmt::format(" {:>8} {:>8} {:>8}", "step_s", "min", "max");
}

std::string to_text(const MemoryCase& c, const MemoryOptions& options) {
  std::string text = fmt::format("{:<{}} {:>8} {:>10.1f} {:>8.4f}",
                                 c.layout.empty() ? kNoLayout : c.layout, layout_width(options),
                                 c.sequence_length, double(c.counts.total.peak_bytes) / kMiB,
                                 double(c.planned_bytes) / double(c.counts.total.peak_bytes));
  for (const MemoryCount& tag : c.counts.tags)
    text += fmt::format(" {:>10.1f}", double(tag.peak_bytes) / kMiB);
  return text + fmt::format(" {:>8.3f} {:>8.3f} {:>8.3f}", c.step.median, c.step.min, c.step.max);
}

std::string to_json_line(const MemoryCase& c, const Recipe& recipe) {
  nlohmann::ordered_json line = {{"bench", "memory"},
                                 {"recipe", recipe.source},
                                 {"layout", c.layout},
                                 {"sequence_length", c.sequence_length},
                                 {"peak_bytes", c.counts.total.peak_bytes},
                                 {"planned_bytes", c.planned_bytes},
                                 {"step_s", c.step.median},
                                 {"step_min_s", c.step.min},
                                 {"step_max_s", c.step.max}};
  for (int tag = 0; tag < kNumTags; ++tag)
    line["tags"][std::string(name_of(Tag(tag)))] = c.counts.tags[size_t(tag)].peak_bytes;
  return line.dump();
}

namespace {

template <typename Value>
std::string plot_of(const std::vector<MemoryCase>& cases, const std::string& title,
                    const std::string& y_label, Value value) {
  report::Plot plot{title, "tokens of a sequence", y_label, {}};
  for (const MemoryCase& c : cases) {
    const auto is_its = [&](const report::Series& series) { return series.name == c.layout; };
    auto found = std::find_if(plot.series.begin(), plot.series.end(), is_its);
    if (found == plot.series.end()) found = plot.series.insert(found, {c.layout, {}});
    found->points.emplace_back(double(c.sequence_length), value(c));
  }
  return report::to_svg(plot);
}

}  // namespace

std::string to_svg(const std::vector<MemoryCase>& cases, const std::string& title) {
  return plot_of(cases, title, "peak memory of a rank, MiB",
                 [](const MemoryCase& c) { return double(c.counts.total.peak_bytes) / kMiB; });
}

std::string times_to_svg(const std::vector<MemoryCase>& cases, const std::string& title) {
  return plot_of(cases, title, "time of a step, s",
                 [](const MemoryCase& c) { return c.step.median; });
}

}  // namespace ashlar::bench
