#include "ashlar/train/run_recipe.h"

#include "ashlar/core/error.h"
#include "ashlar/core/output.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

constexpr const char* kName = "recipe.toml";
constexpr std::string_view kMark =
    "# Written by `ashlar train` at every start of this run: edit a copy.\n";

}  // namespace

void require_own_recipe(FileSystem& files, const Recipe& recipe) {
  const std::string path = join(recipe.train.run_dir, kName);
  if (!files.stat(path) || files.stat(checkpoint_root(recipe), LinkPolicy::kFollow)) return;
  ASHLAR_REQUIRE(read_text(files, path).starts_with(kMark), kConfig,
                 "{} was not written by a run, which would replace it by its own; move it out of "
                 "train.run_dir or rename it",
                 path);
}

void write_run_recipe(FileSystem& files, const Recipe& recipe) {
  const std::string path = join(recipe.train.run_dir, kName);
  Outputs outputs(files, {path}, {}, Existing::kReplace);
  // Removes files that killed starts left; the lease of the run keeps other starts out.
  for (const std::string& left : outputs.left_behind()) files.remove_all(left);
  outputs.write(path, std::string(kMark) + to_toml(recipe));
  outputs.publish();
}

}  // namespace ashlar::train
