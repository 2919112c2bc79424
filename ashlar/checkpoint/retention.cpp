#include "ashlar/checkpoint/retention.h"

#include <algorithm>

#include "ashlar/checkpoint/recovery.h"

namespace ashlar::checkpoint {
namespace {

void read_back(FileSystem& files, const std::string& root, const StepRef& ref, Log& log) {
  const VerifyReport report = verify_step(files, ref.directory, VerifyLevel::kDeep, log);
  if (report.ok()) return record_verified(files, root, ref);
  const std::string& reason = report.findings.front().message;
  record_bad(files, root, ref, reason);
  quarantine(files, root, ref);
  ASHLAR_FAIL(kCorrupt, "step {} does not read back as it was written: {}; check this disk",
              ref.step, reason);
}

std::vector<StepRef> to_retire(FileSystem& files, const std::string& root,
                               const std::vector<StepRef>& steps, int64_t keep,
                               int64_t keep_every) {
  std::vector<RetentionStep> candidates;
  for (const StepRef& ref : steps) candidates.push_back({ref.step, is_verified(files, root, ref)});
  const std::vector<int64_t> removed = steps_to_remove(candidates, keep, keep_every);
  std::vector<StepRef> refs;
  for (const StepRef& ref : steps)
    if (std::find(removed.begin(), removed.end(), ref.step) != removed.end()) refs.push_back(ref);
  return refs;
}

}  // namespace

std::vector<int64_t> steps_to_remove(std::vector<RetentionStep> steps, int64_t keep,
                                     int64_t keep_every) {
  ASHLAR_ASSERT(keep >= 1);
  std::sort(steps.begin(), steps.end(),
            [](const RetentionStep& a, const RetentionStep& b) { return a.step > b.step; });
  std::vector<int64_t> removed;
  bool verified_kept = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool newest_verified = steps[i].verified && !verified_kept;
    verified_kept |= steps[i].verified;
    const bool forever = keep_every > 0 && steps[i].step % keep_every == 0;
    if (int64_t(i) >= keep && !forever && !newest_verified) removed.push_back(steps[i].step);
  }
  return removed;
}

void retire_old_steps(FileSystem& files, const std::string& root, int64_t keep, int64_t keep_every,
                      Log& log) {
  try {
    const std::vector<StepRef> steps = committed_steps(files, root);
    if (to_retire(files, root, steps, keep, keep_every).empty()) return;
    read_back(files, root, steps.back(), log);
    for (const StepRef& ref : to_retire(files, root, steps, keep, keep_every)) {
      remove_step(files, root, ref.directory);
      const std::string verdicts = join(root, kVerifiedDirectory);
      const std::string verdict = join(verdicts, verdict_name(ref.step, ref.attempt));
      if (files.stat(verdict)) files.remove(verdict);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStorage) throw;
    log.warn("old steps of {} were not removed: {}", root, error.what());
  }
}

}  // namespace ashlar::checkpoint
