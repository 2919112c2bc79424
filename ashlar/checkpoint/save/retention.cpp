#include "ashlar/checkpoint/save/retention.h"

#include <algorithm>

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/writers/read_back.h"

namespace ashlar::checkpoint {
namespace {

void check_newest(Fence& fence, const StepRef& ref, const ReadBack& read_back) {
  const std::optional<std::string> reason = read_back(ref);
  if (!reason) return record_verified(fence, ref);
  record_bad(fence, ref, *reason);
  quarantine(fence, ref);
  ASHLAR_FAIL(kCorrupt, "step {} does not read back as it was written: {}; check this disk",
              ref.step, *reason);
}

std::vector<StepRef> to_retire(FileSystem& files, const std::string& root,
                               const std::vector<StepRef>& steps, int64_t keep, int64_t keep_every,
                               bool newest_is_good) {
  std::vector<RetentionStep> candidates;
  for (const StepRef& ref : steps)
    candidates.push_back({ref.step, is_verified(files, root, ref), is_pinned(files, root, ref)});
  if (newest_is_good && !candidates.empty()) candidates.back().verified = true;
  const std::vector<int64_t> removed = steps_to_remove(candidates, keep, keep_every);
  std::vector<StepRef> refs;
  for (const StepRef& ref : steps)
    if (std::find(removed.begin(), removed.end(), ref.step) != removed.end()) refs.push_back(ref);
  return refs;
}

// Removes superseded steps once the run has come as far again.
void drop_superseded(Fence& fence, int64_t newest) {
  const std::string directory = join(fence.root(), kSupersededDirectory);
  if (!fence.files().stat(directory)) return;
  for (const std::string& name : fence.files().list(directory)) {
    const auto step = parse_step_name(std::string_view(name).substr(0, step_name(0).size()));
    if (step && *step <= newest) fence.remove(join(directory, name));
  }
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
    const bool forever = steps[i].pinned || (keep_every > 0 && steps[i].step % keep_every == 0);
    if (int64_t(i) >= keep && !forever && !newest_verified) removed.push_back(steps[i].step);
  }
  return removed;
}

std::vector<StepRef> retire_old_steps(Fence& fence, StepGuards& guards, int64_t keep,
                                      int64_t keep_every, const ReadBack& read_back, Log& log) {
  FileSystem& files = fence.files();
  const std::string& root = fence.root();
  std::vector<StepRef> removed;
  try {
    const std::vector<StepRef> steps = committed_steps(files, root);
    if (to_retire(files, root, steps, keep, keep_every, false).empty()) return removed;
    check_newest(fence, steps.back(), read_back);
    drop_superseded(fence, steps.back().step);
    for (const StepRef& ref : to_retire(files, root, steps, keep, keep_every, true)) {
      if (!guards.remove(ref)) continue;
      remove_step(fence, ref.directory);
      removed.push_back(ref);
      const std::string verdicts = join(root, kVerifiedDirectory);
      const std::string verdict = join(verdicts, verdict_name(ref.step, ref.attempt));
      if (files.stat(verdict)) fence.remove(verdict);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStorage) throw;
    log.warn("old steps of {} were not removed: {}", root, error.what());
  }
  return removed;
}

std::vector<StepRef> prune(FileSystem& files, const std::string& root, int64_t keep,
                           int64_t keep_every, Log& log) {
  Lease lease(files, root, log);
  StepGuards guards(lease.fence(), lease.holder());
  collect_stale(lease.fence(), log);
  guards.make_all();
  return retire_old_steps(
      lease.fence(), guards, keep, keep_every,
      [&](const StepRef& step) { return damage_of(read_back_alone(files, step, 0, log)); }, log);
}

std::vector<StepRef> steps_to_prune(FileSystem& files, const std::string& root, int64_t keep,
                                    int64_t keep_every) {
  return to_retire(files, root, committed_steps(files, root), keep, keep_every, true);
}

}  // namespace ashlar::checkpoint
