#include "ashlar/report/reports.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/report/plan_page.h"
#include "ashlar/report/profile_page.h"
#include "ashlar/report/run_page.h"

namespace ashlar::report {
namespace {

enum class PathKind { kRun, kProfile, kShipped, kPlan };

PathKind kind_of(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path, LinkPolicy::kFollow);
  if (!info && machine::shipped_text(path)) return PathKind::kShipped;
  ASHLAR_REQUIRE(
      info, kData,
      "{}: no such file or directory; expected a run's directory, a profile NAME.toml, a "
      "plan NAME.json, or one of the profiles {}",
      printable(path), fmt::join(machine::shipped_names(), ", "));
  if (info->type == FileInfo::Type::kDirectory) return PathKind::kRun;
  if (path.ends_with(".toml")) return PathKind::kProfile;
  ASHLAR_REQUIRE(path.ends_with(".json"), kConfig,
                 "{}: neither a run's directory, nor a profile NAME.toml, nor a plan NAME.json",
                 printable(path));
  return PathKind::kPlan;
}

machine::Profile read_profile(FileSystem& files, const std::string& path, PathKind kind) {
  return machine::parse_profile(
      kind == PathKind::kShipped ? machine::shipped_text(path) : read_text(files, path), path);
}

// Adds the path to the names of profiles that have one name.
void tell_apart(std::vector<machine::Profile>& profiles, const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const machine::Profile& profile : profiles) names.push_back(profile.name);
  for (size_t i = 0; i < profiles.size(); ++i)
    if (std::count(names.begin(), names.end(), names[i]) > 1)
      profiles[i].name += fmt::format(" ({})", paths[i].substr(paths[i].rfind('/') + 1));
}

// The table beside the profile at `path`.
KernelTimes read_kernels(FileSystem& files, const machine::Profile& profile,
                         const std::string& path) {
  if (!profile.kernels) return {};
  const std::string table = machine::path_beside(path, profile.kernels->file);
  try {
    ASHLAR_REQUIRE(files.stat(table, LinkPolicy::kFollow), kData,
                   "{}: no such file, which the profile names; copy it beside the profile, or "
                   "measure again: ashlar bench kernels RECIPE --profile FILE",
                   printable(table));
    return {machine::parse_kernel_table(read_text(files, table), *profile.kernels, table), ""};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

Page page_of_profiles(FileSystem& files, std::vector<machine::Profile> profiles,
                      const std::vector<std::string>& paths, const std::string& baseline) {
  std::vector<KernelTimes> kernels;
  for (size_t i = 0; i < profiles.size(); ++i)
    kernels.push_back(read_kernels(files, profiles[i], paths[i]));
  std::optional<machine::Profile> earlier;
  if (!baseline.empty()) {
    const PathKind kind = kind_of(files, baseline);
    ASHLAR_REQUIRE(kind == PathKind::kProfile || kind == PathKind::kShipped, kConfig,
                   "--baseline {}: not a profile; expected NAME.toml, or one of {}",
                   printable(baseline), fmt::join(machine::shipped_names(), ", "));
    earlier = read_profile(files, baseline, kind);
  }
  tell_apart(profiles, paths);
  return profile_page(profiles, {kernels, earlier ? &*earlier : nullptr});
}

}  // namespace

Page page_of(FileSystem& files, const std::vector<std::string>& paths,
             const std::string& baseline) {
  std::vector<machine::Profile> profiles;
  std::vector<std::string> profile_paths, runs;
  std::vector<PlanFile> plans;
  for (const std::string& path : paths) {
    const PathKind kind = kind_of(files, path);
    if (kind == PathKind::kRun) {
      runs.push_back(path);
    } else if (kind == PathKind::kPlan) {
      plans.push_back({path, read_text(files, path)});
    } else {
      profiles.push_back(read_profile(files, path, kind));
      profile_paths.push_back(path);
    }
  }
  const bool one_kind = int(!runs.empty()) + int(!plans.empty()) + int(!profiles.empty()) == 1;
  ASHLAR_REQUIRE(one_kind || (runs.empty() && profiles.size() == 1), kConfig,
                 "{} runs, {} profiles and {} plans do not go on one page; expected paths of one "
                 "kind, or plans with one profile",
                 runs.size(), profiles.size(), plans.size());
  ASHLAR_REQUIRE(baseline.empty() || (plans.empty() && runs.empty()), kConfig,
                 "--baseline compares profiles of machines; expected a profile to compare");
  if (!plans.empty()) return plan_page(plans, profiles.empty() ? nullptr : &profiles[0]);
  if (!runs.empty()) return run_page(files, runs);
  return page_of_profiles(files, std::move(profiles), profile_paths, baseline);
}

std::vector<std::string> files_of(FileSystem& files, const std::string& path) {
  const PathKind kind = kind_of(files, path);
  if (kind == PathKind::kShipped) return {};
  if (kind != PathKind::kRun) return {path};
  std::vector<std::string> all;
  for (const char* name : kRunFiles) all.push_back(join(path, name));
  return all;
}

}  // namespace ashlar::report
