#include "ashlar/bench/machine/foreign_share.h"

#include <dirent.h>
#include <sched.h>
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
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

std::vector<int> own_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

double own_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Name and processor ticks of a process, of "4711 (some name) S ..." in /proc/4711/stat.
std::optional<std::pair<std::string, double>> process_of(int id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == line.npos || close == line.npos || close < open) return {};
  std::istringstream rest(line.substr(close + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) rest >> skipped;  // state to cmajflt
  double user = 0, system = 0;
  rest >> user >> system;
  return std::pair(line.substr(open + 1, close - open - 1), user + system);
}

// The JSON that a rank tells the others.
Ordered told(const std::string& host, double own_s, const std::vector<int>& cpus) {
  return {{"host", host}, {"process", getpid()}, {"own_s", own_s}, {"cpus", cpus}};
}

}  // namespace

ForeignWatch::Seen ForeignWatch::look() {
  Seen seen;
  const double tick_s = 1.0 / double(sysconf(_SC_CLK_TCK));
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("cpu") || line.starts_with("cpu ")) continue;
    std::istringstream words(line.substr(3));
    size_t cpu = 0;
    double user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0, steal = 0;
    words >> cpu >> user >> nice >> system >> idle >> io >> irq >> soft >> steal;
    if (seen.busy_s.size() <= cpu) seen.busy_s.resize(cpu + 1);
    seen.busy_s[cpu] = tick_s * (user + nice + system + irq + soft + steal);
    seen.stolen_s += tick_s * steal;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  for (const dirent* entry = nullptr; processes && (entry = readdir(processes.get()));) {
    const std::string_view name = entry->d_name;
    int id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ptr !=
        name.data() + name.size())
      continue;
    if (auto process = process_of(id)) seen.by_id[id] = {process->first, tick_s * process->second};
  }
  seen.own_s = own_seconds();
  return seen;
}

ForeignWatch::ForeignWatch(comm::Group& ranks)
    : ranks_(ranks), before_(look()), start_(Clock::now()) {}

ForeignShare ForeignWatch::end() {
  const double seconds = seconds_since(start_);
  const Seen now = look();
  const std::string host = train::host_name();
  // Ranks that are threads are one process; ranks of one machine share its CPUs.
  std::map<int, double> own;
  std::set<int> cpus;
  const double own_s = now.own_s - before_.own_s;
  for (const std::string& text :
       comm::all_said(ranks_, told(host, own_s, own_cpus()).dump(), "foreign")) {
    const Ordered rank = Ordered::parse(text);
    if (rank["host"] != host) continue;
    own[rank["process"]] = rank["own_s"];
    for (const Ordered& cpu : rank["cpus"]) cpus.insert(cpu.get<int>());
  }
  double busy = 0;
  bool known = !cpus.empty();
  for (const int cpu : cpus) {
    known &= size_t(cpu) < std::min(now.busy_s.size(), before_.busy_s.size());
    if (known) busy += now.busy_s[size_t(cpu)] - before_.busy_s[size_t(cpu)];
  }
  for (const auto& [id, spent] : own) busy -= spent;
  const double share = known ? std::max(0.0, busy) / (double(cpus.size()) * seconds) : -1;

  double most = now.stolen_s - before_.stolen_s;
  std::string neighbour = most > 0 ? fmt::format("the hypervisor of {}", host) : "";
  for (const auto& [id, process] : now.by_id) {
    if (own.contains(id)) continue;
    const auto found = before_.by_id.find(id);
    const double took = process.second - (found == before_.by_id.end() ? 0 : found->second.second);
    if (took <= most) continue;
    most = took;
    neighbour = fmt::format("{} (process {} on {})", process.first, id, host);
  }
  // The machine with the largest share.
  ForeignShare result;
  for (const std::string& text : comm::all_said(
           ranks_, one_line(Ordered{{"share", share}, {"neighbour", neighbour}}), "foreign")) {
    const Ordered rank = Ordered::parse(text);
    const double theirs = rank["share"];
    if (theirs < 0 || (result.share && *result.share >= theirs)) continue;
    result = {theirs, rank["neighbour"]};
  }
  return result;
}

}  // namespace ashlar::bench
