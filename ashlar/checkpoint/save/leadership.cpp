#include "ashlar/checkpoint/save/leadership.h"

#include "ashlar/checkpoint/root/lost_root.h"

namespace ashlar::checkpoint {

Leadership::Leadership(FileSystem& files, const std::string& root, const LeaseOptions& options,
                       Log& log)
    : files_(files),
      root_(root),
      log_(log),
      lease_(files, root, log, options),
      guards_(lease_.fence(), lease_.holder(), options.now) {
  collect_stale(fence(), log_);
  guards_.make_all();
  // Checks what loading the step does not read.  A step of a killed holder may have been cut short
  // in ways that sizes do not show.
  recover(VerifyLevel::kFiles);
  unchecked_ = lease_.taken_over() && newest_ && !is_verified(files_, root_, *newest_);
}

void Leadership::recover(VerifyLevel level) {
  Recovery recovery = find_newest(fence(), level, log_);
  for (const RejectedStep& rejected : recovery.rejected) {
    log_.warn("setting {} aside under {}/{}", rejected.ref.directory, root_, kBadDirectory);
    quarantine(fence(), rejected.ref);
  }
  const std::lock_guard lock(mutex_);
  newest_ = std::move(recovery.newest);
  unchecked_ = false;
}

std::optional<StepRef> Leadership::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

std::optional<StepRef> Leadership::unchecked() const {
  const std::lock_guard lock(mutex_);
  return unchecked_ ? newest_ : std::nullopt;
}

void Leadership::accept_newest() {
  const std::optional<StepRef> good = unchecked();
  ASHLAR_ASSERT(good);
  record_verified(fence(), *good);
  const std::lock_guard lock(mutex_);
  unchecked_ = false;
}

void Leadership::reject_newest(const std::string& reason) {
  const std::optional<StepRef> bad = newest();
  ASHLAR_ASSERT(bad);
  log_.warn("{} is not usable: {}", bad->directory, reason);
  record_bad(fence(), *bad, reason);
  recover(VerifyLevel::kDeep);  // one step was worse than its sizes: check others whole
}

void Leadership::add_newest(StepRef step, std::vector<IndexFile> files) {
  const std::lock_guard lock(mutex_);
  newest_ = std::move(step);
  newest_files_ = std::move(files);
}

std::vector<IndexFile> Leadership::written_files(const StepRef& step) const {
  const std::lock_guard lock(mutex_);
  if (!newest_ || newest_->attempt != step.attempt) return {};
  return newest_files_;
}

void Leadership::retire(int64_t keep, int64_t keep_every, const ReadBack& read_back) {
  std::optional<StepRef> read;
  try {
    const auto noted = [&](const StepRef& step) {
      read = step;
      return read_back(step);
    };
    retire_old_steps(fence(), guards_, keep, keep_every, noted, log_);
  } catch (const Error&) {  // the newest step was set aside
    const std::vector<StepRef> steps = committed_steps(files_, root_);
    const std::lock_guard lock(mutex_);
    if (newest_ && read && newest_->step == read->step) {
      newest_.reset();
      if (!steps.empty() && steps.back().step < read->step) newest_ = steps.back();
    }
    throw;
  }
}

void Leadership::add_abandoned(std::string directory) {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(std::move(directory));
}

void Leadership::remove_abandoned() {
  std::vector<std::string> directories;
  {
    const std::lock_guard lock(mutex_);
    directories = abandoned_;
  }
  for (const std::string& directory : directories) {
    try {
      if (files_.stat(directory)) files_.remove_all(directory);
    } catch (const Error& error) {
      log_.warn("{}; {} is collected at the next start", error.what(), directory);
    }
  }
}

Error Leadership::cause_of(const Error& error, int64_t step) {
  return checkpoint::cause_of(error, lease_, step);
}

}  // namespace ashlar::checkpoint
