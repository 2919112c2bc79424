#include "ashlar/checkpoint/root/doors.h"

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
// How long a step whose door is closed is looked at: its removal takes milliseconds.
constexpr double kPatience_s = 2, kDoorPoll_s = 0.02;

std::string name_of_door(int64_t step, const std::string& attempt) {
  return fmt::format("{}-{}", step_name(step), attempt);
}

std::string pin_path(const std::string& root, const StepRef& ref) {
  return join(door_path(root, ref.step, ref.attempt), kPinName);
}

// "": it is gone.
std::string text_of(FileSystem& files, const std::string& path) {
  try {
    return read_text(files, path, kMaxLeaseBytes, Links::kRefuse);
  } catch (const Error&) {
    if (!files.stat(path)) return "";
    throw;
  }
}

std::vector<std::string> entries_of(FileSystem& files, const std::string& door) {
  try {
    return files.list(door);
  } catch (const Error&) {
    if (!files.stat(door)) return {};
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

// A process trains into the root, or one that was killed did.
bool has_holder(FileSystem& files, const std::string& root) {
  return files.stat(join(join(root, kLeaseDirectory), "trainer.json")).has_value();
}

}  // namespace

std::string door_path(const std::string& root, int64_t step, const std::string& attempt) {
  return join(join(root, kLeaseDirectory), name_of_door(step, attempt));
}

bool is_there(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(ref.directory) && refer(files, root, ref.step).attempt == ref.attempt;
}

Door enter_door(FileSystem& files, const std::string& root, const StepRef& ref,
                const std::string& name, std::string_view text) {
  const std::string door = door_path(root, ref.step, ref.attempt);
  for (double waited_s = 0;; waited_s += kDoorPoll_s) {
    const bool entered = try_create(files, join(door, name), text);
    if (!is_there(files, root, ref)) {
      if (entered) files.remove_all(join(door, name));
      return Door::kGone;
    }
    if (entered) return Door::kEntered;
    if (files.stat(door) || !has_holder(files, root) || waited_s >= kPatience_s) return Door::kNone;
    std::this_thread::sleep_for(std::chrono::duration<double>(kDoorPoll_s));
  }
}

void pin(FileSystem& files, const std::string& root, const StepRef& ref) {
  if (is_pinned(files, root, ref)) return;
  const std::string door = door_path(root, ref.step, ref.attempt);
  if (!has_holder(files, root)) files.make_directories(door);  // of a program without doors
  const Door entered = enter_door(files, root, ref, kPinName, "{\"format\":\"ashlar-pin\"}\n");
  if (entered == Door::kGone) fail_removed(ref.directory);
  ASHLAR_REQUIRE(entered == Door::kEntered, kStorage,
                 "{} is not pinned: no file can be made in {}; expected a root that can be written",
                 ref.directory, door);
  for (const std::string& directory : {door, parent_of(door), root})
    files.sync_directory(directory);
}

void unpin(FileSystem& files, const std::string& root, const StepRef& ref) {
  ASHLAR_REQUIRE(is_pinned(files, root, ref), kConfig, "{} is not pinned", ref.directory);
  files.remove(pin_path(root, ref));
  files.sync_directory(door_path(root, ref.step, ref.attempt));
}

bool is_pinned(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(pin_path(root, ref)).has_value();
}

std::vector<LeaseHolder> readers_of(FileSystem& files, const std::string& root,
                                    const StepRef& ref) {
  const std::string door = door_path(root, ref.step, ref.attempt);
  std::vector<LeaseHolder> readers;
  for (const std::string& name : entries_of(files, door)) {
    if (name == kPinName) continue;
    const std::string path = join(door, name);
    readers.push_back(parse_lease(text_of(files, path), path).value_or(LeaseHolder{}));
  }
  return readers;
}

Doors::Doors(Fence& fence, LeaseHolder me, Now now)
    : fence_(fence), me_(std::move(me)), now_(std::move(now)) {
  if (!now_) now_ = [start = Clock::now()] { return seconds_since(start); };
}

void Doors::open_all() {
  FileSystem& files = fence_.files();
  const std::string directory = join(fence_.root(), kLeaseDirectory);
  std::set<std::string> wanted;
  for (const StepRef& ref : committed_steps(files, fence_.root())) {
    wanted.insert(name_of_door(ref.step, ref.attempt));
    files.make_directories(door_path(fence_.root(), ref.step, ref.attempt));
  }
  for (const std::string& name : files.list(directory))
    if (name.starts_with("step-") && !wanted.contains(name)) fence_.remove(join(directory, name));
}

bool Doors::close(const StepRef& ref) {
  FileSystem& files = fence_.files();
  const std::string door = door_path(fence_.root(), ref.step, ref.attempt);
  // Something went wrong when it was closed before.  Whoever saw no door meanwhile gets the time
  // until this is called again.
  if (!files.stat(door)) {
    files.make_directories(door);
    return false;
  }
  bool empty = true;
  for (const std::string& name : entries_of(files, door)) {
    const std::string path = join(door, name);
    if (name != kPinName && has_ended(path))
      files.remove_all(path);
    else
      empty = false;
  }
  if (!empty) return false;
  try {
    files.remove(door);
  } catch (const Error&) {
    if (files.stat(door)) return false;  // somebody came in
  }
  return true;
}

bool Doors::has_ended(const std::string& lease) {
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
