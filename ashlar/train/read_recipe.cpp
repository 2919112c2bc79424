#include "ashlar/train/read_recipe.h"

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/error.h"
#include "ashlar/models/source.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

GivenModel given_by(const models::DescribedModel& model, const std::string& place) {
  return {model.spec, place, model.hugging_face};
}

GivenModel model_of_first_weights(FileSystem& files, const Recipe& recipe) {
  require_first_weights(files, recipe.init.model);
  return given_by(models::describe_source(files, recipe.init.model), recipe.init.model);
}

// nullopt: the run has no steps.
std::optional<GivenModel> model_of_steps(FileSystem& files, const Recipe& recipe,
                                         std::optional<int64_t> from_step) {
  const std::string root = checkpoint_root(recipe);
  bool any = false;
  for (const checkpoint::StepRef& ref : checkpoint::committed_steps(files, root)) {
    any = true;
    if (ref.step == from_step) {
      const auto model = models::describe_source(files, ref.directory);
      return given_by(model, model.path);
    }
  }
  if (!any) return std::nullopt;
  const auto newest = models::describe_source(files, root);
  return given_by(newest, newest.path);
}

}  // namespace

void require_first_weights(FileSystem& files, const std::string& init_model) {
  ASHLAR_REQUIRE(files.stat(init_model), kConfig,
                 "init.model is {}, which does not exist; expected a Hugging Face directory, a "
                 "run's directory, a checkpoint root or one step of it",
                 init_model);
}

Recipe read_recipe(FileSystem& files, const std::string& path,
                   std::span<const std::string> overrides, std::optional<int64_t> from_step) {
  return load_recipe(path, overrides, [&](const Recipe& recipe) -> std::optional<GivenModel> {
    auto given = model_of_steps(files, recipe, from_step);
    return given ? std::move(given) : model_of_first_weights(files, recipe);
  });
}

void warn_of_other_model(FileSystem& files, const Recipe& recipe, Log& log) {
  if (recipe.init.model.empty()) return;
  if (!checkpoint::committed_steps(files, checkpoint_root(recipe)).empty()) return;
  for (const std::string& line : model_differences(recipe, model_of_first_weights(files, recipe)))
    log.warn("{}; the recipe's value holds", line);
}

}  // namespace ashlar::train
