// Compares a recipe's model with that of the weights that the run begins with.
#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/spec/keys.h"

namespace ashlar {
namespace {

// The recipe with unused keys of its model, such as the window where no block slides, as keys_of
// leaves them.
Recipe without_unused_keys(Recipe recipe) {
  recipe.model = keys_of(model_of(recipe.model));
  return recipe;
}

// The recipe with the given model.
Recipe with_model_of(const GivenModel& given, Recipe recipe) {
  const ModelKeys own = recipe.model;
  recipe.model = keys_of(given.model, given.place);
  if (!given.config_json) return without_unused_keys(std::move(recipe));
  // No config.json states these (docs/hugging-face.md).
  recipe.model.skip_output = own.skip_output;
  recipe.model.head_fp32 = own.head_fp32;
  recipe.model.qk_norm_eps = own.qk_norm_eps;
  return without_unused_keys(std::move(recipe));
}

// Whether two values of a key make the same tensors.  Windows of block types do not matter, and a
// different number of blocks is reported by its own key.
bool same_tensors(const KeyValue& a, const KeyValue& b) {
  const auto *here = std::get_if<std::vector<LayerType>>(&a),
             *there = std::get_if<std::vector<LayerType>>(&b);
  if (!here || !there) return a == b;
  const size_t both = std::min(here->size(), there->size());
  return std::equal(here->begin(), here->begin() + int64_t(both), there->begin(),
                    [](const LayerType& x, const LayerType& y) {
                      return x.mixer == y.mixer && x.feed_forward == y.feed_forward;
                    });
}

}  // namespace

void require_sizes(const Recipe& recipe, const GivenModel& given) {
  const Recipe here = without_unused_keys(recipe), there = with_model_of(given, here);
  std::string problems;
  for (const Key& key : recipe_keys()) {
    if (!key.shapes || same_tensors(key.get(here), key.get(there))) continue;
    problems += fmt::format("{}{} is {} but {} has {}", problems.empty() ? "" : ", ", key.name,
                            value_text(key.get(here)), given.place, value_text(key.get(there)));
  }
  ASHLAR_REQUIRE(problems.empty(), kConfig,
                 "{}{}{}; choose the sizes of init.model, or leave them out, or other weights",
                 recipe.source, recipe.source.empty() ? "" : ": ", problems);
}

std::vector<std::string> model_differences(const Recipe& recipe, const GivenModel& given) {
  const Recipe here = without_unused_keys(recipe), there = with_model_of(given, here);
  std::vector<std::string> lines;
  for (const Key& key : recipe_keys()) {
    const KeyValue is = key.get(here), was = key.get(there);
    if (is != was)
      lines.push_back(fmt::format("{} is {} in the recipe but {} in {}", key.name, value_text(is),
                                  value_text(was), given.place));
  }
  return lines;
}

}  // namespace ashlar
