#include "ashlar/bench/machine/numa_nodes.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "ashlar/bench/machine/foreign_share.h"
#include "ashlar/core/text.h"

namespace ashlar::bench {
namespace {

// Files of /sys have no size, so read_text of FileSystem, which asks for it, finds them empty.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> numbers_of_list(std::string_view list) {
  std::vector<int> numbers;
  for (const std::string& part : split(std::string(list), ',')) {
    int first = 0, last = 0;
    const char* const end = part.data() + part.size();
    auto parsed = std::from_chars(part.data(), end, first);
    if (parsed.ec != std::errc()) return {};
    last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) return {};
    }
    if (parsed.ptr != end || last < first || last >= CPU_SETSIZE) return {};
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::vector<NumaNode> numa_nodes(FileSystem& files, const std::string& root) {
  std::vector<NumaNode> nodes;
  if (!files.stat(root, LinkPolicy::kFollow)) return nodes;
  for (const std::string& name : files.list(root)) {
    constexpr std::string_view kNode = "node";
    int id = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(kNode)) continue;
    const auto parsed = std::from_chars(name.data() + kNode.size(), end, id);
    if (parsed.ptr != end || parsed.ec != std::errc()) continue;
    NumaNode node{id, numbers_of_list(first_line(join(join(root, name), "cpulist")))};
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return nodes;
}

BoundToCpus::BoundToCpus(const std::vector<int>& cpus)
    : cpus_(common_cpus(own_cpus(), cpus)), bound_(cpus_, cpus_) {}

}  // namespace ashlar::bench
