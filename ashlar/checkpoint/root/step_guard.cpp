#include "ashlar/checkpoint/root/step_guard.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

constexpr const char* kPinName = "pin.json";
// How long enter_guard looks at a step without a guard: its removal takes milliseconds.
constexpr double kWait_s = 2, kPoll_s = 0.02;

std::string guard_name(int64_t step, const std::string& attempt) {
  return fmt::format("{}-{}", step_name(step), attempt);
}

std::string pin_path(const std::string& root, const StepRef& ref) {
  return join(guard_path(root, ref.step, ref.attempt), kPinName);
}

// "": it is gone.
std::string text_of(FileSystem& files, const std::string& path) {
  try {
    return read_text(files, path, kMaxLeaseBytes, LinkPolicy::kRefuse);
  } catch (const Error&) {
    if (!files.stat(path)) return "";
    throw;
  }
}

std::vector<std::string> entries_of(FileSystem& files, const std::string& guard) {
  try {
    return files.list(guard);
  } catch (const Error&) {
    if (!files.stat(guard)) return {};
    throw;
  }
}

bool try_create(FileSystem& files, const std::string& path, std::string_view text) {
  std::unique_ptr<File> file;
  try {
    file = files.create(path);
    file->write_at(std::as_bytes(std::span(text)), 0);
    file->close();
    return true;
  } catch (const Error&) {
    if (file) files.remove_all(path);
    return false;
  }
}

// A process trains into the root, or one did until it was killed.
bool has_holder(FileSystem& files, const std::string& root) {
  return files.stat(join(join(root, kLeaseDirectory), "trainer.json")).has_value();
}

}  // namespace

std::string guard_path(const std::string& root, int64_t step, const std::string& attempt) {
  return join(join(root, kLeaseDirectory), guard_name(step, attempt));
}

bool is_there(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(ref.directory) && refer(files, root, ref.step).attempt == ref.attempt;
}

GuardEntry enter_guard(FileSystem& files, const std::string& root, const StepRef& ref,
                       const std::string& name, std::string_view text) {
  const std::string guard = guard_path(root, ref.step, ref.attempt);
  for (double waited_s = 0;; waited_s += kPoll_s) {
    const bool entered = try_create(files, join(guard, name), text);
    if (!is_there(files, root, ref)) {
      if (entered) files.remove_all(join(guard, name));
      return GuardEntry::kGone;
    }
    if (entered) return GuardEntry::kEntered;
    if (files.stat(guard) || !has_holder(files, root) || waited_s >= kWait_s)
      return GuardEntry::kNone;
    std::this_thread::sleep_for(std::chrono::duration<double>(kPoll_s));
  }
}

void pin(FileSystem& files, const std::string& root, const StepRef& ref) {
  if (is_pinned(files, root, ref)) return;
  const std::string guard = guard_path(root, ref.step, ref.attempt);
  if (!has_holder(files, root)) files.make_directories(guard);  // of a program without guards
  const GuardEntry entered =
      enter_guard(files, root, ref, kPinName, "{\"format\":\"ashlar-pin\"}\n");
  if (entered == GuardEntry::kGone) fail_removed(ref.directory);
  ASHLAR_REQUIRE(entered == GuardEntry::kEntered, kStorage,
                 "{} is not pinned: no file can be made in {}; expected a root that can be written",
                 ref.directory, guard);
  for (const std::string& directory : {guard, parent_of(guard), root})
    files.sync_directory(directory);
}

void unpin(FileSystem& files, const std::string& root, const StepRef& ref) {
  ASHLAR_REQUIRE(is_pinned(files, root, ref), kConfig, "{} is not pinned", ref.directory);
  files.remove(pin_path(root, ref));
  files.sync_directory(guard_path(root, ref.step, ref.attempt));
}

bool is_pinned(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(pin_path(root, ref)).has_value();
}

std::vector<LeaseHolder> readers_of(FileSystem& files, const std::string& root,
                                    const StepRef& ref) {
  const std::string guard = guard_path(root, ref.step, ref.attempt);
  std::vector<LeaseHolder> readers;
  for (const std::string& name : entries_of(files, guard)) {
    if (name == kPinName) continue;
    const std::string path = join(guard, name);
    readers.push_back(parse_lease(text_of(files, path), path).value_or(LeaseHolder{}));
  }
  return readers;
}

StepGuards::StepGuards(Fence& fence, LeaseHolder me, Now now)
    : fence_(fence), me_(std::move(me)), now_(std::move(now)) {
  if (!now_) now_ = [start = Clock::now()] { return seconds_since(start); };
}

void StepGuards::make_all() {
  FileSystem& files = fence_.files();
  const std::string directory = join(fence_.root(), kLeaseDirectory);
  std::set<std::string> wanted;
  for (const StepRef& ref : committed_steps(files, fence_.root())) {
    wanted.insert(guard_name(ref.step, ref.attempt));
    files.make_directories(guard_path(fence_.root(), ref.step, ref.attempt));
  }
  for (const std::string& name : files.list(directory))
    if (name.starts_with("step-") && !wanted.contains(name)) fence_.remove(join(directory, name));
}

bool StepGuards::remove(const StepRef& ref) {
  FileSystem& files = fence_.files();
  const std::string guard = guard_path(fence_.root(), ref.step, ref.attempt);
  // An earlier removal went wrong.  A reader that saw no guard meanwhile has until the next call to
  // come in.
  if (!files.stat(guard)) {
    files.make_directories(guard);
    return false;
  }
  bool empty = true;
  for (const std::string& name : entries_of(files, guard)) {
    const std::string path = join(guard, name);
    if (name != kPinName && has_ended(path))
      files.remove_all(path);
    else
      empty = false;
  }
  if (!empty) return false;
  try {
    files.remove(guard);
  } catch (const Error&) {
    if (files.stat(guard)) return false;  // somebody came in
  }
  return true;
}

bool StepGuards::has_ended(const std::string& lease) {
  const std::string text = text_of(fence_.files(), lease);
  const std::optional<LeaseHolder> holder = parse_lease(text, lease);  // nullopt: being written
  const Life life = holder ? life_of(*holder, me_) : Life::kUnknown;
  if (life != Life::kUnknown) return life == Life::kDead;
  const auto [seen, first] = seen_.try_emplace(lease, Seen{text, now_()});
  if (!first && seen->second.text != text) seen->second = {text, now_()};
  const double expiry_s = holder.value_or(LeaseHolder{}).expiry_s();
  if (now_() - seen->second.since_s < expiry_s) return false;
  seen_.erase(seen);
  return true;
}

}  // namespace ashlar::checkpoint
