#include "ashlar/core/process.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>

namespace ashlar {

namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// "max", or any other text that is not a number, means no limit.
int64_t limit_in(const std::string& text) {
  int64_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  return error == std::errc() && limit > 0 ? limit : INT64_MAX;
}

// Fields 3 and 22 of a line of stat, counted after the command name, which may hold spaces.
std::optional<ProcessStat> parse_stat(const std::string& line) {
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessStat stat{};
  std::string skipped;
  fields >> stat.state;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  if (!(fields >> stat.start_ticks)) return std::nullopt;
  return stat;
}

}  // namespace

std::optional<ProcessStat> stat_of_process(int64_t pid) {
  return parse_stat(text_of_file(fmt::format("/proc/{}/stat", pid)));
}

std::optional<ProcessStat> stat_of_thread(int64_t pid, int64_t thread) {
  return parse_stat(text_of_file(fmt::format("/proc/{}/task/{}/stat", pid, thread)));
}

std::optional<double> process_age_s() {
  const std::optional<ProcessStat> stat = stat_of_process(getpid());
  if (!stat) return std::nullopt;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9 -
         double(stat->start_ticks) / double(sysconf(_SC_CLK_TCK));
}

// A line is "0::/path" (version 2, file memory.max) or "7:memory,...:/path" (version 1).  A group
// is limited by every group above it.  Inside a container the path may exist on the host only; the
// root that is mounted there is then the container's own group.
int64_t memory_limit_of_groups(std::string_view groups,
                               function_ref<std::string(const std::string& path)> text_of) {
  int64_t limit = INT64_MAX;
  std::istringstream lines{std::string(groups)};
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool newer = controllers == ",,";
    if (!newer && controllers.find(",memory,") == controllers.npos) continue;
    const std::string root = newer ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string file = newer ? "/memory.max" : "/memory.limit_in_bytes";
    std::string path = line.substr(second + 1);
    for (;; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      limit = std::min(limit, limit_in(text_of(root + path + file)));
      if (path.empty()) break;
    }
  }
  return limit;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (const size_t colon = line.find(": "); line.starts_with("model name") && colon != line.npos)
      return line.substr(colon + 2);
  return "unknown processor";
}

int64_t memory_limit_bytes() {
  const int64_t machine = int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
  return std::min(
      machine, memory_limit_of_groups(text_of_file("/proc/self/cgroup"),
                                      [](const std::string& path) { return text_of_file(path); }));
}

}  // namespace ashlar
