// How it works.  The usable CPUs are cores in the order of the machine.  place() takes the cores of
// the machine, then of each socket, each NUMA node, each cache:
//
//   spread   gives every part as many ranks as it can take whole; the next rank goes where the
//            share of each would be largest.  If the ranks do not all fit into parts, as one rank
//            on all nodes does not, they are not spread but split.
//   split    cuts the row of cores evenly, or the row of CPUs where threads need SMT siblings.
#include "ashlar/core/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

namespace ashlar {
namespace {

struct UsableCore {
  Topology::Cpu at;  // of its first CPU
  Cpus cpus;
};

std::vector<UsableCore> usable_cores(const Topology& topology, const Cpus& usable) {
  std::vector<UsableCore> cores;
  Cpus known;
  for (const Topology::Cpu& cpu : topology.cpus) {
    known.push_back(cpu.number);
    if (!std::binary_search(usable.begin(), usable.end(), cpu.number)) continue;
    if (cores.empty() || cores.back().at.core != cpu.core) cores.push_back({cpu, {}});
    cores.back().cpus.push_back(cpu.number);
  }
  std::sort(known.begin(), known.end());
  int next = topology.num_cores();
  for (const int cpu : usable)
    if (!std::binary_search(known.begin(), known.end(), cpu))
      cores.push_back({{cpu, next++, 0, 0, 0}, {cpu}});
  return cores;
}

using Cores = std::span<const UsableCore>;

int num_cpus(Cores cores) {
  size_t count = 0;
  for (const UsableCore& core : cores) count += core.cpus.size();
  return int(count);
}

using Level = int Topology::Cpu::*;
constexpr Level kLevels[] = {&Topology::Cpu::package, &Topology::Cpu::numa_node,
                             &Topology::Cpu::cache};

class Placer {
 public:
  Placer(Cores all, int num_ranks, int num_threads) : num_threads_(num_threads) {
    by_core_ = int(all.size()) >= num_ranks * num_threads;
    place(all, num_ranks, kLevels);
  }
  std::vector<RankPlace> places;

 private:
  // Room for threads: cores, or CPUs where there are too few cores.
  int room(Cores cores) const { return by_core_ ? int(cores.size()) : num_cpus(cores); }

  void place(Cores cores, int num_ranks, std::span<const Level> levels) {
    if (num_ranks == 0) return;
    if (levels.empty()) return split(cores, num_ranks);
    std::vector<Cores> parts;
    for (size_t i = 0, begin = 0; i < cores.size(); ++i)
      if (i + 1 == cores.size() || cores[i + 1].at.*levels[0] != cores[i].at.*levels[0]) {
        parts.push_back(cores.subspan(begin, i + 1 - begin));
        begin = i + 1;
      }
    const std::vector<int> counts = spread(parts, num_ranks);
    if (counts.empty()) return split(cores, num_ranks);
    for (size_t i = 0; i < parts.size(); ++i) place(parts[i], counts[i], levels.subspan(1));
  }

  // Ranks of each part; nothing if they do not all fit.
  std::vector<int> spread(const std::vector<Cores>& parts, int num_ranks) const {
    std::vector<int> counts(parts.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
      int best = -1;
      for (int i = 0; i < int(parts.size()); ++i) {
        const auto share = [&](int part) {
          return double(room(parts[size_t(part)])) / (counts[size_t(part)] + 1);
        };
        const bool fits = (counts[size_t(i)] + 1) * num_threads_ <= room(parts[size_t(i)]);
        if (fits && (best < 0 || share(i) > share(best))) best = i;
      }
      if (best < 0) return {};
      ++counts[size_t(best)];
    }
    return counts;
  }

  void split(Cores cores, int num_ranks) {
    const auto cut = [&](size_t count, int rank) {
      return count * size_t(rank) / size_t(num_ranks);
    };
    bool fit = true;  // every rank has room on whole cores
    for (int rank = 0; rank < num_ranks; ++rank) {
      const size_t begin = cut(cores.size(), rank), end = cut(cores.size(), rank + 1);
      fit &= num_cpus(cores.subspan(begin, end - begin)) >= num_threads_;
    }
    std::vector<UsableCore> single;  // each CPU as if it were a core
    if (!fit)
      for (const UsableCore& core : cores)
        for (const int cpu : core.cpus) single.push_back({core.at, {cpu}});
    const Cores row = fit ? cores : Cores(single);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const size_t begin = cut(row.size(), rank), end = cut(row.size(), rank + 1);
      places.push_back(place_on(row.subspan(begin, end - begin)));
    }
  }

  RankPlace place_on(Cores cores) const {
    RankPlace result;
    for (size_t sibling = 0; int(result.threads.size()) < num_threads_; ++sibling)
      for (const UsableCore& core : cores)
        if (sibling < core.cpus.size() && int(result.threads.size()) < num_threads_)
          result.threads.push_back(core.cpus[sibling]);
    for (const UsableCore& core : cores)
      result.cpus.insert(result.cpus.end(), core.cpus.begin(), core.cpus.end());
    std::sort(result.cpus.begin(), result.cpus.end());
    return result;
  }

  const int num_threads_;
  bool by_core_ = true;
};

// The CPUs of all nodes that have some of these.
Cpus nodes_around(Cores cores, const Cpus& cpus) {
  std::set<int> nodes;
  const auto has = [&](int cpu) { return std::binary_search(cpus.begin(), cpus.end(), cpu); };
  for (const UsableCore& core : cores)
    if (std::any_of(core.cpus.begin(), core.cpus.end(), has)) nodes.insert(core.at.numa_node);
  Cpus result;
  for (const UsableCore& core : cores)
    if (nodes.contains(core.at.numa_node))
      result.insert(result.end(), core.cpus.begin(), core.cpus.end());
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::vector<RankPlace> place_ranks(const Topology& topology, const Cpus& usable, int num_ranks,
                                   int num_threads) {
  const std::vector<UsableCore> cores = usable_cores(topology, usable);
  const bool crowded = int64_t(num_ranks) * num_threads > int64_t(usable.size());
  const bool shares = !crowded || num_ranks <= int(usable.size());
  std::vector<RankPlace> places;
  if (shares) {
    places = Placer(cores, num_ranks, crowded ? threads_of_share(usable, num_ranks) : num_threads)
                 .places;
  } else {  // more ranks than CPUs: neighbours have a CPU in common
    for (int rank = 0; rank < num_ranks; ++rank)
      places.push_back({.cpus = {usable[size_t(rank) * usable.size() / size_t(num_ranks)]},
                        .threads = {},
                        .nearby = {}});
  }
  for (RankPlace& place : places) {
    place.nearby = nodes_around(cores, place.cpus);
    if (!crowded) continue;
    place.cpus = place.nearby;
    place.threads.clear();
  }
  return places;
}

int threads_of_share(const Cpus& usable, int num_ranks) {
  return std::max(1, int(usable.size()) / num_ranks);
}

bool fills_cores(const Topology& topology, const Cpus& usable, int num_threads) {
  return num_threads >= int(usable_cores(topology, usable).size());
}

Cpus cache_mates(const Topology& topology, const Cpus& cpus, int cpu) {
  const auto cache_of = [&](int number) {
    const auto found = std::find_if(topology.cpus.begin(), topology.cpus.end(),
                                    [&](const auto& other) { return other.number == number; });
    return found == topology.cpus.end() ? -1 : found->cache;
  };
  const int cache = cache_of(cpu);
  Cpus mates;
  for (const int other : cpus)
    if (cache_of(other) == cache) mates.push_back(other);
  return mates;
}

std::string place_text(const Topology& topology, const Cpus& cpus) {
  std::set<int> nodes;
  for (const Topology::Cpu& cpu : topology.cpus)
    if (std::binary_search(cpus.begin(), cpus.end(), cpu.number))
      nodes.insert(topology.numa_nodes[size_t(cpu.numa_node)].number);
  const std::string text = fmt::format("{} {}", cpus.size() == 1 ? "CPU" : "CPUs", cpus_text(cpus));
  if (nodes.empty() || !topology.is_known) return text;
  return fmt::format("{} of NUMA node{} {}", text, nodes.size() == 1 ? "" : "s",
                     cpus_text({nodes.begin(), nodes.end()}));
}

}  // namespace ashlar
