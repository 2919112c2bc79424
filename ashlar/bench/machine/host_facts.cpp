#include "ashlar/bench/machine/host_facts.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/comm/agree.h"
#include "ashlar/core/json.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/core/topology.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

constexpr const char* kUnlimited = "unlimited";

// The first line of a file; "" if there is none.
std::string first_line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "madvise" of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open < close && close != line.npos ? line.substr(open + 1, close - open - 1) : "";
}

std::string microcode() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (const size_t colon = line.find(": "); line.starts_with("microcode") && colon != line.npos)
      return line.substr(colon + 2);
  return "";
}

std::string locked_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "";
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : format_bytes(int64_t(limit.rlim_cur));
}

std::string shared_memory() {
  struct statvfs file_system {};
  if (statvfs("/dev/shm", &file_system) != 0) return "";
  return format_bytes(int64_t(file_system.f_blocks) * int64_t(file_system.f_frsize));
}

// "2.0 of 8 CPUs" where a control group gives less processor time than CPUs.
std::string cpu_limit(size_t num_cpus) {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || period <= 0) return "";  // "max 100000", or no such file
  return quota / period < double(num_cpus)
             ? fmt::format("{:.1f} of {} CPUs", quota / period, num_cpus)
             : "";
}

// Versions by the names of files: libmpi.so.40 is a link to libmpi.so.40.30.4.
void add_libraries(HostFacts& facts) {
  const auto add = [](dl_phdr_info* library, size_t, void* into) {
    for (const char* name : {"libmpi", "libhwloc", "libstdc++", "libucp", "libfabric"}) {
      const std::filesystem::path path = library->dlpi_name;
      if (!path.filename().string().starts_with(std::string(name) + ".so")) continue;
      std::error_code error;
      const auto file = std::filesystem::canonical(path, error);
      if (!error) (*static_cast<HostFacts*>(into))[name] = file.filename().string();
    }
    return 0;
  };
  dl_iterate_phdr(add, &facts);
  facts["libc"] = gnu_get_libc_version();
}

}  // namespace

HostFacts host_facts() {
  utsname system{};
  uname(&system);
  const Topology topology = this_machine();
  HostFacts facts = {
      {"os", system.sysname},
      {"kernel", system.release},
      {"cpu", processor_name()},
      {"microcode", microcode()},
      {"isa", std::string(name_of(kernels::isa()))},
      {"memory", format_bytes(memory_limit_bytes())},
      {"cpus", fmt::format("{} on {} cores in {} sockets", topology.cpus.size(),
                           topology.num_cores(), topology.num_packages())},
      {"numa_nodes", fmt::format("{}", topology.numa_nodes.size())},
      {"governor", first_line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
      {"numa_balancing", first_line_of("/proc/sys/kernel/numa_balancing")},
      {"huge_pages", chosen_word(first_line_of("/sys/kernel/mm/transparent_hugepage/enabled"))},
      {"locked_memory", locked_memory()},
      {"shared_memory", shared_memory()},
      {"cpu_limit", cpu_limit(topology.allowed.size())}};
  add_libraries(facts);
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

std::vector<std::string> host_warnings(const HostFacts& facts) {
  std::vector<std::string> warnings;
  const auto value = [&](const char* key) {
    const auto found = facts.find(key);
    return found == facts.end() ? std::string() : found->second;
  };
  if (const std::string governor = value("governor");
      !governor.empty() && governor != "performance")
    warnings.push_back(fmt::format(
        "the governor of CPU frequencies is {}: clocks follow the load, and numbers vary; choose "
        "performance (cpupower frequency-set -g performance)",
        governor));
  if (const std::string balancing = value("numa_balancing");
      !balancing.empty() && balancing != "0" && value("numa_nodes") != "1")
    warnings.push_back(
        "NUMA balancing is on: the kernel moves pages while they are used; turn it off "
        "(sysctl kernel.numa_balancing=0)");
  if (value("huge_pages") == "never")
    warnings.push_back(
        "transparent huge pages are off: large tensors miss the TLB more often; allow them "
        "(echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)");
  const bool has_network_library = facts.contains("libucp") || facts.contains("libfabric");
  if (has_network_library && facts.contains("locked_memory") &&
      value("locked_memory") != kUnlimited)
    warnings.push_back(fmt::format(
        "memory that may be locked is {}: network cards that read memory themselves need more "
        "(ulimit -l unlimited)",
        value("locked_memory")));
  if (value("shared_memory") == format_bytes(64 << 20))
    warnings.push_back(
        "/dev/shm has 64.00 MiB, a container's default: processes of one host exchange through it; "
        "give it more (docker run --shm-size=8g)");
  if (!value("cpu_limit").empty())
    warnings.push_back(fmt::format(
        "a control group gives the time of {}: threads beyond it are stopped by turns; lower "
        "--threads, or raise the limit",
        value("cpu_limit")));
  return warnings;
}

std::string drift_text(std::span<const NamedHost> hosts) {
  constexpr size_t kShownHosts = 4;
  std::map<std::string, std::map<std::string, std::vector<std::string>>> by_fact;  // value -> hosts
  for (const NamedHost& host : hosts)
    for (const auto& [key, text] : host.facts) by_fact[key];
  for (auto& [key, values] : by_fact)
    for (const NamedHost& host : hosts) {
      const auto found = host.facts.find(key);
      values[found == host.facts.end() ? "unknown" : found->second].push_back(host.name);
    }
  std::string text;
  for (const auto& [key, values] : by_fact) {
    if (values.size() < 2) continue;
    std::vector<std::pair<std::string, std::vector<std::string>>> rows(values.begin(),
                                                                       values.end());
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    for (const auto& [value, names] : rows) {
      text += fmt::format("{:<16} {:<32}", key, value);
      for (size_t i = 0; i < std::min(names.size(), kShownHosts); ++i)
        text += fmt::format("{} {}", i == 0 ? "" : ",", names[i]);
      if (names.size() > kShownHosts)
        text += fmt::format(" and {} more", names.size() - kShownHosts);
      text += "\n";
    }
  }
  return text.empty() ? "" : fmt::format("# hosts differ:\n{}", text);
}

std::vector<NamedHost> hosts_of(comm::Group& ranks) {
  Ordered mine{{"host", train::host_name()}, {"facts", host_facts()}};
  std::vector<NamedHost> hosts;
  for (const std::string& text : comm::all_said(ranks, one_line(mine), "hosts")) {
    const Ordered said = Ordered::parse(text);
    const auto is_it = [&](const NamedHost& host) { return host.name == said["host"]; };
    if (std::none_of(hosts.begin(), hosts.end(), is_it))
      hosts.push_back({said["host"], said["facts"].get<HostFacts>()});
  }
  return hosts;
}

}  // namespace ashlar::bench
