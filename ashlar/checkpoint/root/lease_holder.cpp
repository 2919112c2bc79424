#include "ashlar/checkpoint/root/lease_holder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/core/agent.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/files.h"

namespace ashlar::checkpoint {
namespace {

constexpr double kMaxRefresh_s = 600;  // no lease may keep others waiting for more than an hour

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

// The start time of a process, field 22 of its stat line; 0 if there is no such process, or only a
// zombie, which stays if a container's first process does not wait for it.
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

}  // namespace

LeaseHolder this_process() {
  const auto system = posix_files();
  LeaseHolder me;
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
  me.epoch = launch_epoch();
  if (me.epoch > 0) me.attempt = launch_attempt();
  return me;
}

std::string lease_text(const LeaseHolder& holder, int64_t beat) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar-lease";
  json["host"] = holder.host;
  json["boot"] = holder.boot;
  json["pid_namespace"] = holder.pid_namespace;
  json["pid"] = holder.pid;
  json["started"] = holder.started;
  json["token"] = holder.token;
  json["refresh_s"] = holder.refresh_s;
  json["beat"] = beat;
  if (holder.epoch > 0) {
    json["epoch"] = holder.epoch;
    json["attempt"] = holder.attempt;
  }
  return json.dump() + "\n";
}

std::optional<LeaseHolder> parse_lease(std::string_view text, const std::string& path) {
  try {
    const Json json = parse_json(text, path, ErrorKind::kCorrupt);
    const Fields fields(json, path);
    LeaseHolder holder;
    holder.host = fields.text("host");
    holder.boot = fields.text("boot");
    holder.pid_namespace = fields.text("pid_namespace");
    holder.pid = fields.count("pid");
    holder.started = fields.count("started");
    if (fields.has("token")) holder.token = fields.text("token");
    if (fields.has("refresh_s")) holder.refresh_s = fields.number("refresh_s");
    if (fields.has("epoch")) holder.epoch = fields.count("epoch");
    if (fields.has("attempt")) holder.attempt = fields.count("attempt");
    if (!(holder.refresh_s > 0)) holder.refresh_s = LeaseHolder().refresh_s;
    holder.refresh_s = std::min(holder.refresh_s, kMaxRefresh_s);
    return holder;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool replaces(const LeaseHolder& me, const LeaseHolder& holder) {
  return holder.epoch > 0 &&
         std::pair(me.epoch, me.attempt) > std::pair(holder.epoch, holder.attempt);
}

Life life_of(const LeaseHolder& holder, const LeaseHolder& me) {
  if (holder.boot == me.boot && holder.pid_namespace == me.pid_namespace) {
    const int64_t started = start_time(*posix_files(), holder.pid);
    return started != 0 && started == holder.started ? Life::kAlive : Life::kDead;
  }
  return holder.host == me.host && holder.boot != me.boot ? Life::kDead : Life::kUnknown;
}

bool is_same_process(const LeaseHolder& a, const LeaseHolder& b) {
  return a.boot == b.boot && a.pid_namespace == b.pid_namespace && a.pid == b.pid;
}

}  // namespace ashlar::checkpoint
