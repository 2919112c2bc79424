#include "ashlar/checkpoint/root/reader_lease.h"

#include <chrono>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {

std::unique_ptr<ReaderLease> ReaderLease::take(FileSystem& files, const std::string& root,
                                               const StepRef& ref, const LeaseOptions& options) {
  LeaseHolder me = options.holder ? *options.holder : this_process();
  me.refresh_s = options.refresh_s;
  me.token = to_text(random_id());
  const std::string name = me.token + ".json";
  switch (enter_guard(files, root, ref, name, lease_text(me, 0))) {
    case GuardEntry::kGone:
      return nullptr;
    case GuardEntry::kNone:
      return std::unique_ptr<ReaderLease>(new ReaderLease(files, "", std::move(me)));
    case GuardEntry::kEntered:
      break;
  }
  return std::unique_ptr<ReaderLease>(
      new ReaderLease(files, join(guard_path(root, ref.step, ref.attempt), name), std::move(me)));
}

std::unique_ptr<ReaderLease> ReaderLease::of_step(FileSystem& files, const std::string& directory) {
  const auto step = step_of_path(directory);
  if (!step) return std::unique_ptr<ReaderLease>(new ReaderLease(files, "", this_process()));
  const std::string root = parent_of(directory);
  auto lease = take(files, root, refer(files, root, *step));
  if (!lease) fail_removed(directory);
  return lease;
}

ReaderLease::ReaderLease(FileSystem& files, std::string path, LeaseHolder me)
    : files_(files), path_(std::move(path)), me_(std::move(me)) {
  if (held())
    refresher_ = start_thread("that refreshes a reader's lease", [this] { refresh_loop(); });
}

ReaderLease::~ReaderLease() {
  if (!held()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  refresher_.join();
  try {
    files_.remove_all(path_);
  } catch (const Error&) {  // it expires
  }
}

// Writes in place: a holder of the root that reads half of the text still sees that it changes.  A
// reader that slept until its lease was removed makes it again, unless the step is gone; then its
// reads fail.
void ReaderLease::refresh_loop() {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> interval(me_.refresh_s);
  for (int64_t beat = 1; !changed_.wait_for(lock, interval, [&] { return stop_; }); ++beat) {
    const std::string text = lease_text(me_, beat);
    lock.unlock();
    try {
      const auto file = files_.append(path_);
      file->write_at(std::as_bytes(std::span(text)), 0);
      file->close();
    } catch (const Error&) {  // tried again at the next beat
    }
    lock.lock();
  }
}

}  // namespace ashlar::checkpoint
