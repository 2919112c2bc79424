#include "ashlar/models/path.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/error.h"
#include "ashlar/models/step_model.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::models {
namespace {

constexpr const char* kRecipeFile = "recipe.toml";
constexpr int64_t kMaxRecipeBytes = 1 << 20;

// "; the first is due at step 200", from the run's recipe; "" if that cannot be read.
std::string first_due(FileSystem& files, const std::string& recipe_path) {
  try {
    const Recipe recipe =
        parse_saved_recipe(read_text(files, recipe_path, kMaxRecipeBytes), recipe_path);
    const int64_t every = recipe.checkpoint.every, steps = recipe.train.steps;
    if (every < 0) return "; checkpoint.every is -1, so that none is saved";
    const int64_t first = every == 0 ? steps : std::min(every, steps);
    return fmt::format("; the first is due at step {} (checkpoint.every is {})", first, every);
  } catch (const Error&) {
    return "";
  }
}

bool is_run(FileSystem& files, const std::string& path) {
  return files.stat(join(path, kCheckpointsDirectory)) && files.stat(join(path, kRecipeFile));
}

// The directory of the run if the path is that or the run's checkpoint root; else "".
std::string run_of(FileSystem& files, const std::string& path) {
  if (is_run(files, path)) return path;
  const std::string parent = parent_of(path);
  const std::string_view name = std::string_view(path).substr(0, path.find_last_not_of('/') + 1);
  const bool is_root = name.substr(name.rfind('/') + 1) == kCheckpointsDirectory;
  return is_root && is_run(files, parent) ? parent : "";
}

}  // namespace

std::string root_of_run(FileSystem& files, const std::string& path) {
  if (files.stat(join(path, kConfigFile)) || checkpoint::is_checkpoint(files, path)) return path;
  return is_run(files, path) ? join(path, kCheckpointsDirectory) : path;
}

void require_saved(FileSystem& files, const std::string& path) {
  const std::string run = run_of(files, path);
  if (run.empty() || checkpoint::is_checkpoint(files, join(run, kCheckpointsDirectory))) return;
  ASHLAR_FAIL(kConfig, "{}: no checkpoint yet{}", path, first_due(files, join(run, kRecipeFile)));
}

std::string locate_model(FileSystem& files, const std::string& path) {
  const std::string place = root_of_run(files, path);
  if (files.stat(join(place, kConfigFile)) || checkpoint::is_checkpoint(files, place)) return place;
  require_saved(files, path);
  ASHLAR_FAIL(kConfig,
              "{}: {}expected a Hugging Face directory (with config.json), a run's directory, a "
              "checkpoint root or one step of it",
              path, files.stat(path, LinkPolicy::kFollow) ? "" : "there is no such directory; ");
}

}  // namespace ashlar::models
