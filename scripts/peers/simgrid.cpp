// Random traffic over a cluster of two levels, by Ashlar's flow sets (ashlar/sim/flow_sets.h) and by
// SimGrid with its model CM02: when does each flow end?  simgrid.sh builds and runs it.
//
// Every host has a link up to its leaf and one down from it; a leaf has a link up to the spine and
// one down, which may be narrower than those of its hosts together.  Flows begin at random moments
// with random sizes.  Links have no latency, since CM02 also shares by latency; nothing else of TCP
// is modelled.  A line for each pattern; exit code 1 if a flow differs by more than 3 %.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "ashlar/sim/flow_sets.h"

namespace {

constexpr int kPatterns = 20;
constexpr double kMostError = 0.03;

struct Flow {
  int from = 0, to = 0;
  double begin_s = 0, bytes = 0;
  std::vector<int> links;
};

struct Pattern {
  int num_hosts = 0;
  std::vector<double> capacities;  // of links, bytes a second
  std::vector<Flow> flows;
};

Pattern make_pattern(int number) {
  std::mt19937_64 random(static_cast<uint64_t>(number) + 1);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto one_of = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Pattern pattern;
  const int n = pattern.num_hosts = one_of(8, 64);
  const int per_leaf = one_of(2, 8), leaves = (n + per_leaf - 1) / per_leaf;
  const double over = between(1, 4);
  for (int i = 0; i < 2 * n; ++i) pattern.capacities.push_back(12.5e9 * (1 << one_of(0, 2)));
  for (int i = 0; i < 2 * leaves; ++i) pattern.capacities.push_back(25e9 * per_leaf / over);
  const int num_flows = one_of(n, 4 * n);
  for (int i = 0; i < num_flows; ++i) {
    Flow flow;
    flow.from = one_of(0, n - 1);
    flow.to = (flow.from + one_of(1, n - 1)) % n;
    flow.begin_s = one_of(0, 1) ? between(0, 0.1) : 0;
    flow.bytes = std::floor(std::exp(between(std::log(1e6), std::log(1e9))));
    const int from_leaf = flow.from / per_leaf, to_leaf = flow.to / per_leaf;
    flow.links = {2 * flow.from, 2 * flow.to + 1};
    if (from_leaf != to_leaf)
      flow.links.insert(flow.links.begin() + 1, {2 * n + 2 * from_leaf, 2 * n + 2 * to_leaf + 1});
    pattern.flows.push_back(flow);
  }
  return pattern;
}

std::vector<double> by_flow_sets(const Pattern& pattern) {
  ashlar::sim::FlowSets sets;
  for (const double capacity : pattern.capacities) sets.add_resource(capacity);
  std::vector<std::optional<int>> set_of(pattern.flows.size());
  std::vector<bool> begun(pattern.flows.size());
  std::vector<double> ends(pattern.flows.size());
  for (;;) {
    double next_s = INFINITY;
    size_t next = 0;
    for (size_t i = 0; i < pattern.flows.size(); ++i) {
      if (begun[i] && !set_of[i]) continue;
      const double at_s = set_of[i] ? sets.end_s(*set_of[i]) : pattern.flows[i].begin_s;
      if (at_s < next_s) next_s = at_s, next = i;
    }
    if (next_s == INFINITY) return ends;
    if (set_of[next]) {
      sets.end(*set_of[next], next_s);
      set_of[next].reset();
      ends[next] = next_s;
      continue;
    }
    std::vector<ashlar::sim::ResourceUse> uses;
    for (const int link : pattern.flows[next].links) uses.push_back({link, 1});
    set_of[next] = sets.start(pattern.flows[next].bytes, 0, uses, next_s);
    begun[next] = true;
  }
}

std::vector<double> by_simgrid(const Pattern& pattern) {
  namespace sg = simgrid::s4u;
  int argc = 2;
  std::string name = "simgrid", quiet = "--log=xbt_cfg.thresh:warning";
  char* argv[] = {name.data(), quiet.data(), nullptr};
  sg::Engine engine(&argc, argv);
  for (const char* setting :
       {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0"})
    sg::Engine::set_config(setting);
  sg::NetZone* zone = sg::create_full_zone("zone");
  std::vector<sg::Host*> hosts;
  for (int i = 0; i < pattern.num_hosts; ++i)
    hosts.push_back(zone->create_host("host" + std::to_string(i), 1e9)->seal());
  std::vector<sg::Link*> links;
  for (size_t i = 0; i < pattern.capacities.size(); ++i)
    links.push_back(zone->create_link("link" + std::to_string(i), pattern.capacities[i])
                        ->set_latency(0.0)
                        ->seal());
  std::vector<std::vector<bool>> routed(hosts.size(), std::vector<bool>(hosts.size()));
  for (const Flow& flow : pattern.flows) {
    if (routed[size_t(flow.from)][size_t(flow.to)]) continue;
    routed[size_t(flow.from)][size_t(flow.to)] = true;
    std::vector<sg::LinkInRoute> route;
    for (const int link : flow.links) route.emplace_back(links[size_t(link)]);
    zone->add_route(hosts[size_t(flow.from)]->get_netpoint(),
                    hosts[size_t(flow.to)]->get_netpoint(), nullptr, nullptr, route, false);
  }
  zone->seal();
  std::vector<double> ends(pattern.flows.size());
  for (size_t i = 0; i < pattern.flows.size(); ++i) {
    const Flow& flow = pattern.flows[i];
    sg::Actor::create(
        "flow" + std::to_string(i), hosts[size_t(flow.from)], [&flow, &hosts, &ends, i] {
          simgrid::s4u::this_actor::sleep_until(flow.begin_s);
          sg::Comm::sendto(hosts[size_t(flow.from)], hosts[size_t(flow.to)], uint64_t(flow.bytes));
          ends[i] = sg::Engine::get_clock();
        });
  }
  engine.run();
  return ends;
}

// In a process of its own, since SimGrid has one engine a process.
bool compare(int number) {
  const Pattern pattern = make_pattern(number);
  const std::vector<double> ours = by_flow_sets(pattern), theirs = by_simgrid(pattern);
  double most = 0, sum = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double begin_s = pattern.flows[i].begin_s;
    const double error = std::abs(ours[i] - theirs[i]) / (theirs[i] - begin_s);
    most = std::max(most, error);
    sum += error;
  }
  std::printf(
      "pattern %2d: %2d hosts, %3zu flows, last ends at %.6f s and %.6f s; error of a flow: "
      "mean %.4f %%, largest %.4f %%\n",
      number, pattern.num_hosts, ours.size(), *std::max_element(ours.begin(), ours.end()),
      *std::max_element(theirs.begin(), theirs.end()), 100 * sum / double(ours.size()), 100 * most);
  std::fflush(stdout);
  return most <= kMostError;
}

}  // namespace

int main() {
  bool good = true;
  for (int number = 0; number < kPatterns; ++number) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(compare(number) ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::printf("%s\n", good ? "every flow within 3 %" : "a flow differs by more than 3 %");
  return good ? 0 : 1;
}
