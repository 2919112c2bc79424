#include "ashlar/checkpoint/lease.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "ashlar/checkpoint/fields.h"
#include "ashlar/checkpoint/layout.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kMaxLeaseBytes = 4096;

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

// Start time of a process, field 22 of its stat line; 0 if there is no such process, or only what is
// left of one that nobody waited for: where a container's first process does not, that stays.
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
  } catch (const Error&) {  // a system without it: only the host tells
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

bool may_be_alive(const Holder& holder, const Holder& me, int64_t age_s) {
  if (holder.boot == me.boot && holder.pid_namespace == me.pid_namespace) {
    if (holder.pid == me.pid) return false;  // left behind inside this very process
    const int64_t started = start_time(*posix_files(), holder.pid);
    return started != 0 && started == holder.started;
  }
  if (holder.host == me.host && holder.boot != me.boot) return false;  // restarted since
  return age_s < kLeaseExpiry_s;
}

}  // namespace

// Whole or absent: written aside, then renamed to a name that must be free.
bool Lease::try_create() {
  if (files_.stat(path_)) return false;
  const std::string aside = path_ + "." + to_text(random_id());
  const auto file = files_.create(aside);
  file->write_at(std::as_bytes(std::span(text_)), 0);
  file->close();
  try {
    files_.rename_new(aside, path_);
  } catch (const Error&) {
    if (!files_.stat(path_)) throw;
    files_.remove(aside);  // another process was faster
    return false;
  }
  return true;
}

// What killed starters left beside the lease.
void Lease::collect() {
  for (const std::string& name : files_.list(parent_of(path_)))
    if (name.starts_with("trainer.json.")) files_.remove(join(parent_of(path_), name));
}

Lease::Lease(FileSystem& files, const std::string& root, Log& log)
    : files_(files), path_(join(join(root, kLeaseDirectory), "trainer.json")), log_(log) {
  const Holder me = this_process();
  text_ = to_json(me);
  files_.make_directories(parent_of(path_));
  if (try_create()) {
    collect();
    return;
  }
  const auto info = files_.stat(path_);
  const std::string found = read_text(files_, path_, kMaxLeaseBytes, Links::kRefuse);
  try {
    const Holder holder = parse_holder(found, path_);
    const int64_t age_s = info ? int64_t(std::time(nullptr)) - info->modified_s : 0;
    ASHLAR_REQUIRE(!may_be_alive(holder, me, age_s), kConfig,
                   "{} is in use: process {} on {} trains into it; stop that process or choose "
                   "another directory (if it is certainly gone, remove {})",
                   root, holder.pid, holder.host, path_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;  // a torn lease is that of a killed process
  }
  // Take away exactly the lease that was judged dead: of two starters only one finds it.
  const std::string aside = path_ + "." + to_text(random_id());
  files_.rename_new(path_, aside);
  if (read_text(files_, aside, kMaxLeaseBytes, Links::kRefuse) != found) {
    files_.rename_new(aside, path_);
    ASHLAR_FAIL(kConfig, "{} was taken by another process a moment ago; only one may train into it",
                root);
  }
  files_.remove(aside);
  ASHLAR_REQUIRE(try_create(), kConfig,
                 "{} was taken by another process a moment ago; only one may train into it", root);
  taken_over_ = true;
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

void Lease::refresh() {
  write_text(files_, path_, text_);
}

}  // namespace ashlar::checkpoint
