#include "ashlar/checkpoint/root/rewind.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/root/step_guard.h"

namespace ashlar::checkpoint {
namespace {

std::string numbers_of(const std::vector<StepRef>& steps) {
  std::vector<int64_t> numbers;
  for (const StepRef& ref : steps) numbers.push_back(ref.step);
  return fmt::format("{}", fmt::join(numbers, ", "));
}

void require_good(FileSystem& files, const StepRef& ref, Log& log) {
  const VerifyReport report = verify_step(files, ref.directory, VerifyLevel::kDeep, log);
  ASHLAR_REQUIRE(report.ok(), kCorrupt, "{} is damaged: {}; choose another step", ref.directory,
                 report.findings.front().message);
}

}  // namespace

void rewind(FileSystem& files, const std::string& root, int64_t step, bool supersede, Log& log) {
  const std::vector<StepRef> steps =
      files.stat(root) ? committed_steps(files, root) : std::vector<StepRef>{};
  const auto chosen = std::find_if(steps.begin(), steps.end(),
                                   [&](const StepRef& ref) { return ref.step == step; });
  ASHLAR_REQUIRE(chosen != steps.end(), kConfig, "{} holds no step {}; it holds {}", root, step,
                 steps.empty() ? "none" : "steps " + numbers_of(steps));
  std::vector<StepRef> newer(chosen + 1, steps.end());
  if (newer.empty()) return;
  ASHLAR_REQUIRE(supersede, kConfig,
                 "{} holds steps newer than {}: {}; set them aside with --supersede, or copy step "
                 "{} to the checkpoints of another train.run_dir",
                 root, step, numbers_of(newer), step);
  Lease lease(files, root, log);
  StepGuards guards(lease.fence(), lease.holder());
  require_good(files, *chosen, log);
  guards.make_all();
  for (const StepRef& ref : newer)
    ASHLAR_REQUIRE(guards.remove(ref), kConfig,
                   "{} is pinned or being read (ckpt list); unpin it, or wait", ref.directory);
  std::reverse(newer.begin(), newer.end());  // whatever happens, no gap is left
  for (const StepRef& ref : newer) {
    const std::string name = fmt::format("{}-{}", step_name(ref.step), ref.attempt);
    lease.fence().set_aside(ref.directory, Fence::Aside::kSuperseded, name);
    log.info("{} is superseded: it is kept under {}/{} until the run has come as far again",
             ref.directory, root, kSupersededDirectory);
  }
}

}  // namespace ashlar::checkpoint
