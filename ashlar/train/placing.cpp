#include "ashlar/train/placing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ashlar/comm/agree.h"
#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/train/machine.h"

namespace ashlar::train {
namespace {

std::string text_of_place(const Topology& topology, const Placed& placed, const Cpus& usable) {
  if (!placed.threads.empty()) {
    std::set<int> all;
    size_t most = 0;  // CPUs of a thread
    for (const Cpus& cpus : placed.threads) {
      all.insert(cpus.begin(), cpus.end());
      most = std::max(most, cpus.size());
    }
    const std::string text = place_text(topology, {all.begin(), all.end()});
    if (most == 1) return text;
    return (most == all.size() ? "any of " : "caches of ") + text;
  }
  if (placed.home.size() == 1) return place_text(topology, placed.home) + ", by turns";
  if (!placed.home.empty()) return "any of " + place_text(topology, placed.home);
  return place_text(topology, usable) + ", not bound";
}

// A launcher that binds each of few ranks to a core leaves most of a machine idle.
std::string note_of_idle(int num_cpus, const Cpus& allowed, const std::string& host) {
  if (2 * num_cpus > int(allowed.size())) return "";
  return fmt::format(
      " (the launcher left the ranks {} of the {} CPUs of {}; mpirun --bind-to none "
      "leaves them all)",
      num_cpus, allowed.size(), host);
}

// Whether the set overlaps another one without being equal to it.
bool is_entangled(const Cpus& set, std::span<const Cpus> sets) {
  return std::any_of(sets.begin(), sets.end(), [&](const Cpus& other) {
    return other != set && !common_cpus(set, other).empty();
  });
}

// Binds ranks with the same CPUs, as far as `binding` says.
void bind_group(const Topology& topology, const Cpus& cpus, const std::vector<size_t>& ranks,
                Binding binding, std::vector<Placed>& places) {
  const int num_ranks = int(ranks.size()), num_threads = places[ranks[0]].num_threads;
  const bool filled = fills_cores(topology, cpus, num_ranks * num_threads);
  if (binding == Binding::kCache && !filled && num_ranks == 1) return;
  const std::vector<RankPlace> found = place_ranks(topology, cpus, num_ranks, num_threads);
  for (size_t i = 0; i < ranks.size(); ++i) {
    Placed& placed = places[ranks[i]];
    if (filled || binding == Binding::kCore)
      for (const int cpu : found[i].threads)
        placed.threads.push_back(binding == Binding::kCore ? Cpus{cpu}
                                                           : cache_mates(topology, cpus, cpu));
    placed.home = found[i].nearby;
    if (!placed.threads.empty() || found[i].threads.empty()) continue;
    std::set<int> caches;  // of its share
    for (const int cpu : found[i].cpus)
      for (const int mate : cache_mates(topology, cpus, cpu)) caches.insert(mate);
    placed.home.assign(caches.begin(), caches.end());
  }
}

std::string places_of_run(int first, int last, const std::string& place) {
  return first == last ? fmt::format("rank {}: {}", first, place)
                       : fmt::format("ranks {} to {}: {}", first, last, place);
}

}  // namespace

Binding parse_binding(std::string_view word) {
  if (word.empty() || word == "l3cache") return Binding::kCache;
  if (word == "core") return Binding::kCore;
  ASHLAR_REQUIRE(word == "none", kConfig, "--bind-to is {}; expected l3cache, core or none",
                 printable(word));
  return Binding::kNone;
}

BoundThread bind_to(const Placed& placed) {
  return {placed.threads.empty() ? placed.home : placed.threads[0], placed.home, placed.threads};
}

Topology topology_for(Binding binding) {
  return binding == Binding::kNone ? flat_topology(usable_cpus()) : this_machine();
}

std::vector<Placed> place_host(const Topology& topology, std::span<const Cpus> usable,
                               int num_threads, Binding binding) {
  std::map<Cpus, std::vector<size_t>> groups;  // ranks by the CPUs that they share
  std::set<int> all;
  for (size_t i = 0; i < usable.size(); ++i) {
    groups[usable[i]].push_back(i);
    all.insert(usable[i].begin(), usable[i].end());
  }
  std::vector<Placed> places(usable.size());
  for (const auto& [cpus, ranks] : groups) {
    const int threads = num_threads > 0 ? num_threads : threads_of_share(cpus, int(ranks.size()));
    for (const size_t rank : ranks)
      places[rank] = {threads, std::max(1, int(all.size())), {}, {}, ""};
    if (binding != Binding::kNone && !cpus.empty() && !is_entangled(cpus, usable))
      bind_group(topology, cpus, ranks, binding, places);
    for (const size_t rank : ranks) places[rank].text = text_of_place(topology, places[rank], cpus);
  }
  return places;
}

Placed place_process(comm::Group& ranks, int num_threads, Binding binding) {
  const std::string host = host_name();
  const std::vector<std::string> all =
      comm::all_said(ranks, fmt::format("{} {}", host, cpus_text(usable_cpus())), "CPUs");
  std::vector<Cpus> usable;  // of the ranks of this machine
  size_t here = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t space = all[rank].rfind(' ');
    if (all[rank].substr(0, space) != host) continue;
    if (int(rank) == ranks.rank()) here = usable.size();
    usable.push_back(parse_cpus(all[rank].substr(space + 1)));
  }
  const Topology topology = topology_for(binding);
  Placed placed = place_host(topology, usable, num_threads, binding)[here];
  if (here == 0) placed.text += note_of_idle(placed.num_cpus, topology.allowed, host);
  return placed;
}

std::string describe_places(std::span<const std::string> places) {
  constexpr size_t kMostRuns = 8, kFirstRuns = 4;
  std::vector<std::string> runs;  // of neighbours in the same place
  for (size_t first = 0, last = 0; first < places.size(); first = last + 1) {
    for (last = first; last + 1 < places.size() && places[last + 1] == places[first];) ++last;
    runs.push_back(places_of_run(int(first), int(last), places[first]));
  }
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool shown = runs.size() <= kMostRuns || i < kFirstRuns || i + 1 == runs.size();
    if (shown) text += (text.empty() ? "" : "; ") + runs[i];
    if (!shown && i == kFirstRuns) text += "; ...";
  }
  return text;
}

}  // namespace ashlar::train
