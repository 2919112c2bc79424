#include "ashlar/bench/machine/foreign_share.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "ashlar/comm/agree.h"
#include "ashlar/core/affinity.h"
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

double own_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The JSON that a rank tells the others.
Ordered told(const std::string& host, double own_s, const std::vector<int>& cpus) {
  return {{"host", host}, {"process", getpid()}, {"own_s", own_s}, {"cpus", cpus}};
}

}  // namespace

std::vector<int> own_cpus() {
  return usable_cpus();
}

// Parses "4711 (some name) S ..." in /proc/4711/stat.
std::optional<ForeignWatch::Process> ForeignWatch::process_of(int id) {
  constexpr uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == line.npos || close == line.npos || close < open) return {};
  std::istringstream rest(line.substr(close + 1));
  std::string skipped;
  for (int i = 0; i < 6; ++i) rest >> skipped;  // state to tpgid
  uint64_t flags = 0;
  rest >> flags;
  for (int i = 0; i < 4; ++i) rest >> skipped;  // minflt to cmajflt
  double user = 0, system = 0;
  rest >> user >> system;
  return Process{line.substr(open + 1, close - open - 1), (flags & kKernelThread) != 0,
                 (user + system) / double(sysconf(_SC_CLK_TCK))};
}

ForeignWatch::Seen ForeignWatch::look() {
  Seen seen;
  const double tick_s = 1.0 / double(sysconf(_SC_CLK_TCK));
  std::ifstream file("/proc/stat");
  seen.at = Clock::now();
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("cpu") || line.starts_with("cpu ")) continue;
    std::istringstream words(line.substr(3));
    size_t cpu = 0;
    double user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0, steal = 0;
    words >> cpu >> user >> nice >> system >> idle >> io >> irq >> soft >> steal;
    if (seen.idle_s.size() <= cpu) {
      seen.idle_s.resize(cpu + 1);
      seen.busy_s.resize(cpu + 1);
    }
    seen.busy_s[cpu] = tick_s * (user + nice + system + steal);
    seen.idle_s[cpu] = tick_s * (idle + io + irq + soft);
    seen.stolen_s += tick_s * steal;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  for (const dirent* entry = nullptr; processes && (entry = readdir(processes.get()));) {
    const std::string_view name = entry->d_name;
    int id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ptr !=
        name.data() + name.size())
      continue;
    if (auto process = process_of(id)) seen.by_id[id] = std::move(*process);
  }
  seen.own_s = own_seconds();
  return seen;
}

ForeignWatch::ForeignWatch(comm::Group& ranks) : ranks_(ranks), before_(look()) {}

ForeignShare ForeignWatch::end() {
  const Seen now = look();
  const double seconds = std::chrono::duration<double>(now.at - before_.at).count();
  const std::string host = train::host_name();
  // Ranks that are threads are one process; ranks of one machine share its CPUs.
  std::map<int, double> own;
  std::set<int> cpus;
  const double own_s = now.own_s - before_.own_s;
  for (const std::string& text :
       comm::all_said(ranks_, told(host, own_s, usable_cpus()).dump(), "foreign")) {
    const Ordered rank = Ordered::parse(text);
    if (rank["host"] != host) continue;
    own[rank["process"]] = rank["own_s"];
    for (const Ordered& cpu : rank["cpus"]) cpus.insert(cpu.get<int>());
  }
  double busy = 0;
  constexpr double kLeast_s = 0.1, kLong_s = 0.5;
  bool known = !cpus.empty() && seconds >= kLeast_s;
  for (const int cpu : cpus) {
    known &= size_t(cpu) < std::min(now.idle_s.size(), before_.idle_s.size());
    if (!known) continue;
    const auto spent = [&](const std::vector<double> Seen::*times) {
      return (now.*times)[size_t(cpu)] - (before_.*times)[size_t(cpu)];
    };
    busy += seconds >= kLong_s ? seconds - spent(&Seen::idle_s) : spent(&Seen::busy_s);
  }
  for (const auto& [id, spent] : own) busy -= spent;
  const auto took = [&](int id, const Process& process) {
    const auto found = before_.by_id.find(id);
    return process.seconds - (found == before_.by_id.end() ? 0 : found->second.seconds);
  };
  for (const auto& [id, process] : now.by_id)
    if (process.is_of_kernel) busy -= took(id, process);
  const double share = known ? std::max(0.0, busy) / (double(cpus.size()) * seconds) : -1;

  double most = now.stolen_s - before_.stolen_s;
  std::string neighbour = most > 0 ? fmt::format("the hypervisor of {}", host) : "";
  for (const auto& [id, process] : now.by_id) {
    if (own.contains(id) || process.is_of_kernel || took(id, process) <= most) continue;
    most = took(id, process);
    neighbour = fmt::format("{} (process {} on {})", process.name, id, host);
  }
  // The machine with the largest share.
  ForeignShare result;
  for (const std::string& text : comm::all_said(
           ranks_, one_line(Ordered{{"share", share}, {"neighbour", neighbour}}), "foreign")) {
    const Ordered rank = Ordered::parse(text);
    const double theirs = rank["share"];
    if (theirs < 0 || (result.share && *result.share >= theirs)) continue;
    result.share = theirs;
    result.neighbour = rank["neighbour"];
  }
  return result;
}

}  // namespace ashlar::bench
