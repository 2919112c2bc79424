// ashlar ckpt VERB: the group, and helpers of its verbs.
#include "ashlar/cli/ckpt.h"

#include <algorithm>
#include <filesystem>

#include "ashlar/checkpoint/format/layout.h"

namespace ashlar::cli {
namespace {

// The path with every link on the way followed, as far as it exists.
std::filesystem::path real_path(const std::string& path) {
  std::error_code error;
  auto real = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  ASHLAR_REQUIRE(!error, kStorage, "{}: {}", path, error.message());
  return real.has_filename() ? real : real.parent_path();  // "a/" is a
}

}  // namespace

void require_outside(const std::string& root, const std::string& model) {
  const auto inner = real_path(root), outer = real_path(model);
  const auto common = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first;
  ASHLAR_REQUIRE(common != outer.end(), kConfig,
                 "{} is the model directory {} or lies in it; choose a root outside", root, model);
}

void require_outside_steps(FileSystem& files, const std::string& out) {
  for (auto at = real_path(out).parent_path(); at.has_relative_path(); at = at.parent_path())
    ASHLAR_REQUIRE(!files.stat((at / checkpoint::kCommitName).string()), kConfig,
                   "{} lies in the checkpoint step {}; choose a directory outside", out,
                   at.string());
}

void add_ckpt(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand(
      "ckpt",
      "list, inspect, verify, keep, prune, compare, average, import and export checkpoints");
  group->require_subcommand(1);
  add_ckpt_inspection(*group, action);
  add_ckpt_keeping(*group, action);
  add_ckpt_conversion(*group, action);
  add_ckpt_diff(*group, action);
  add_ckpt_average(*group, action);
}

}  // namespace ashlar::cli
