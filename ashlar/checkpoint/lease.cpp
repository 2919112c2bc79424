// How it works.  The lease is the file trainer.json; whoever put it there holds the root.  Nothing
// is asked of the file system but two atomic renames: to a name that must be free (rename_new), and
// over a name (replace).
//
//   claim(path)   writes the own text aside, renames it to `path`; false: the name is taken
//   take(path)    claim; if the name is taken, read it.  Its holder may be alive: kConfig.  Dead:
//                   take(successor), a name made of the hash of the dead text
//                   the dead text is still at `path`: replace it by the successor, done
//                   another text is there: give the successor back, start again
//   check()       the own text is still at `path`, or else the root has another holder
//   refresh()     check, then writes the text again, which renews its time of modification
//
// Only the holder of the successor replaces that one dead text, so that two starters that both saw
// it die meet at the successor, and the later one finds another text at `path`.  The recursion ends
// at a successor whose name is free or whose holder lives.
#include "ashlar/checkpoint/lease.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <optional>

#include "ashlar/checkpoint/layout.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/fields.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kMaxLeaseBytes = 4096;
// Between a call that fails and the look for why, another process may take a name or give it back;
// an error that means something else comes every time.
constexpr int kAttempts = 4;

struct Holder {
  std::string host, boot, pid_namespace;
  int64_t pid = 0, started = 0;  // started: clock ticks after boot
};

std::string read_system_file(FileSystem& system, const std::string& path) {
  // Files under /proc have no size; one page is more than these hold.
  std::array<std::byte, 4096> page{};
  const auto file = system.open(path);
  size_t length = 0;
  try {
    for (; length < page.size(); ++length)
      file->read_at(std::span(page).subspan(length, 1), int64_t(length));
  } catch (const Error&) {  // the end of the file
  }
  return {reinterpret_cast<const char*>(page.data()), length};
}

// Start time of a process, field 22 of its stat line; 0 if there is no such process, or only what
// is left of one that nobody waited for: where a container's first process does not, that stays.
int64_t start_time(FileSystem& system, int64_t pid) {
  try {
    const std::string line = read_system_file(system, fmt::format("/proc/{}/stat", pid));
    size_t at = line.rfind(')');  // the command may hold spaces and parentheses
    if (at == line.npos || line.substr(at, 3) == ") Z" || line.substr(at, 3) == ") X") return 0;
    for (int field = 2; field < 22 && at != line.npos; ++field) at = line.find(' ', at + 1);
    return at == line.npos ? 0 : std::stoll(line.substr(at));
  } catch (const std::exception&) {
    return 0;
  }
}

Holder this_process() {
  const auto system = posix_files();
  Holder me;
  char text[256] = {};
  if (gethostname(text, sizeof text - 1) == 0) me.host = text;
  try {
    me.boot = read_system_file(*system, "/proc/sys/kernel/random/boot_id");
    me.boot.resize(me.boot.find_last_not_of('\n') + 1);
  } catch (const Error&) {  // a system without boot ids
  }
  const ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
  if (length > 0) me.pid_namespace.assign(text, size_t(length));
  me.pid = getpid();
  me.started = start_time(*system, me.pid);
  return me;
}

std::string to_json(const Holder& holder) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar-lease";
  json["host"] = holder.host;
  json["boot"] = holder.boot;
  json["pid_namespace"] = holder.pid_namespace;
  json["pid"] = holder.pid;
  json["started"] = holder.started;
  json["token"] = to_text(random_id());
  return json.dump() + "\n";
}

Holder parse_holder(std::string_view text, const std::string& path) {
  const Json json = parse_json(text, path, ErrorKind::kCorrupt);
  const Fields fields(json, path);
  return {fields.text("host"), fields.text("boot"), fields.text("pid_namespace"),
          fields.count("pid"), fields.count("started")};
}

// A process of this boot and pid namespace is known by its start time, even if its pid was given
// again.  Elsewhere only the age of the lease tells, unless the same host has booted since.
bool may_be_alive(const Holder& holder, const Holder& me, int64_t age_s) {
  if (holder.boot == me.boot && holder.pid_namespace == me.pid_namespace) {
    if (holder.pid == me.pid) return false;  // left behind inside this very process
    const int64_t started = start_time(*posix_files(), holder.pid);
    return started != 0 && started == holder.started;
  }
  if (holder.host == me.host && holder.boot != me.boot) return false;  // restarted since
  return age_s < kLeaseExpiry_s;
}

// The text of a file; nullopt: there is none, or there is none any more.
std::optional<std::string> text_at(FileSystem& files, const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    try {
      return read_text(files, path, kMaxLeaseBytes, Links::kRefuse);
    } catch (const Error&) {
      if (!files.stat(path)) return std::nullopt;
      if (attempt == kAttempts) throw;
    }
  }
}

void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove_all(path);
  } catch (const Error&) {  // the first error says more
  }
}

int64_t age_of(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path);
  return info ? int64_t(std::time(nullptr)) - info->modified_s : 0;
}

// nullopt: the text is torn.  Leases appear whole; only a machine that went down leaves a torn one.
std::optional<Holder> holder_in(std::string_view text, const std::string& path) {
  try {
    return parse_holder(text, path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

// Whole or absent: written aside, then renamed to a name that must be free.
bool Lease::claim(const std::string& path) {
  if (files_.stat(path)) return false;
  const std::string aside = path_ + "." + to_text(random_id());
  try {
    const auto file = files_.create(aside);
    file->write_at(std::as_bytes(std::span(text_)), 0);
    file->close();
    const bool mine = give_name(aside, path);
    if (!mine) files_.remove(aside);
    return mine;
  } catch (const Error&) {
    remove_quietly(files_, aside);
    throw;
  }
}

// Renames `aside` to `path`.  False: another process was faster.
bool Lease::give_name(const std::string& aside, const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    try {
      files_.rename_new(aside, path);
      return true;
    } catch (const Error&) {
      if (files_.stat(path)) return false;
      if (attempt == kAttempts) throw;
    }
  }
}

// The successor is taken like a lease, because its holder may die too.  No file is ever taken away
// on a judgement that may be of an earlier file of the same name.
void Lease::take(const std::string& path) {
  while (!claim(path)) {
    const std::optional<std::string> found = text_at(files_, path);
    if (!found) continue;  // given back a moment ago
    const std::optional<Holder> holder = holder_in(*found, path);
    ASHLAR_REQUIRE(!holder || !may_be_alive(*holder, this_process(), age_of(files_, path)), kConfig,
                   "{} is in use: process {} on {} trains into it; stop that process or choose "
                   "another directory (if it is certainly gone, remove {})",
                   root_, holder->pid, holder->host, path);
    const std::string successor =
        fmt::format("{}.{:016x}", path_, xxh3_64(std::as_bytes(std::span(*found))));
    take(successor);
    taken_over_ = true;
    if (text_at(files_, path) == found) return files_.replace(successor, path);
    files_.remove(successor);
  }
}

// Removes the files that killed starters left beside the lease; starters that live need theirs.
void Lease::collect() {
  const Holder me = this_process();
  for (const std::string& name : files_.list(parent_of(path_))) {
    if (!name.starts_with("trainer.json.")) continue;
    const std::string path = join(parent_of(path_), name);
    const int64_t age_s = age_of(files_, path);
    const std::optional<std::string> text = text_at(files_, path);
    if (!text) continue;
    const std::optional<Holder> holder = holder_in(*text, path);
    if (holder ? !may_be_alive(*holder, me, age_s) : age_s >= kLeaseExpiry_s)
      files_.remove_all(path);
  }
}

Lease::Lease(FileSystem& files, const std::string& root, Log& log)
    : files_(files),
      root_(root),
      path_(join(join(root, kLeaseDirectory), "trainer.json")),
      text_(to_json(this_process())),
      log_(log) {
  files_.make_directories(parent_of(path_));
  take(path_);
  collect();
}

Lease::~Lease() {
  try {
    if (files_.stat(path_) && read_text(files_, path_, kMaxLeaseBytes, Links::kRefuse) == text_)
      files_.remove(path_);
  } catch (const std::exception& error) {
    log_.warn("{} could not be removed: {}; the next start takes it over", path_, error.what());
  }
}

void Lease::check() {
  std::optional<std::string> found = text_at(files_, path_);
  while (!found && !claim(path_)) found = text_at(files_, path_);  // somebody removed the lease
  if (!found || *found == text_) return;
  const std::optional<Holder> holder = holder_in(*found, path_);
  ASHLAR_FAIL(kConfig,
              "{} was taken over by {}, because this process did not renew its lease for {} s; "
              "stop one of the two",
              root_,
              holder ? fmt::format("process {} on {}", holder->pid, holder->host) : "another",
              kLeaseExpiry_s);
}

void Lease::refresh() {
  check();
  write_text(files_, path_, text_);
}

}  // namespace ashlar::checkpoint
