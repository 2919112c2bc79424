#include "ashlar/train/changes.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ashlar/core/error.h"
#include "ashlar/optim/schedule.h"
#include "ashlar/spec/keys.h"

namespace ashlar::train {
namespace {

// The rate of the step that follows `step` others.
double rate_after(const Recipe& recipe, int64_t steps) {
  return optim::learning_rate(recipe.optim, steps, recipe.train.steps);
}

// Whether the same weights have another loss or gradient under another value of the key.
bool decides_losses(std::string_view key) {
  constexpr std::array<std::string_view, 11> kKeys{
      "data.train",           "data.validation_fraction",
      "data.sequence_length", "data.packing",
      "data.document_reset",  "data.mask_document_end",
      "train.global_batch",   "train.precision",
      "train.stream",         "lora.alpha",
      "lora.rslora"};
  return key.starts_with("model.") || key.starts_with("moe.") ||
         std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

}  // namespace

std::vector<std::string> incomparable(const Recipe& before, const Recipe& now, int64_t step) {
  std::vector<std::string> reasons;
  for (const Key& key : recipe_keys())
    if (decides_losses(key.name) && key.get(before) != key.get(now)) reasons.push_back(key.name);
  if (!rate_change(before, now, step).empty()) reasons.push_back("the learning rate");
  return reasons;
}

std::string rate_change(const Recipe& before, const Recipe& now, int64_t step) {
  const double next = rate_after(now, step);
  if (step < 1 || next == rate_after(before, step)) return "";
  return fmt::format("the rate of step {} is {:.3g}, that of step {} was {:.3g}", step + 1, next,
                     step, rate_after(before, step - 1));
}

std::vector<std::string> report_changes(const std::string& saved_recipe, const std::string& place,
                                        const Recipe& now, std::span<const std::string> others,
                                        int64_t step, Log& log) {
  try {
    const Recipe before = parse_saved_recipe(saved_recipe, place);
    std::vector<std::string> lines = differences(before, now);
    lines.insert(lines.end(), others.begin(), others.end());
    if (!lines.empty()) log.info("changed since step {}:", step);
    for (const std::string& line : lines) log.info("  {}", line);
    const std::string rate = rate_change(before, now, step);
    if (!rate.empty()) log.info("{}", rate);
    return incomparable(before, now, step);
  } catch (const Error& error) {
    // Another version of Ashlar, with other keys, may have written it.
    log.warn("what changed since step {} is not known: {}", step, error.what());
    return {"the recipe"};
  }
}

std::string warmup_problem(const Recipe& recipe) {
  const int64_t warmup = recipe.optim.warmup_steps, steps = recipe.train.steps;
  if (warmup <= steps) return "";
  return fmt::format(
      "optim.warmup_steps is {} but train.steps is {}: the run ends at {:.3g} % of optim.lr, "
      "without "
      "any decay; choose fewer steps of warm-up",
      warmup, steps, 100.0 * double(steps) / double(warmup));
}

}  // namespace ashlar::train
