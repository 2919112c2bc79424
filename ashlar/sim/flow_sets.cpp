#include "ashlar/sim/flow_sets.h"

#include <algorithm>
#include <limits>

#include "ashlar/core/error.h"

namespace ashlar::sim {
namespace {

constexpr double kRounding = 1e-9;  // of sums of wanted shares

bool over(double wanted, double capacity) {
  return wanted > capacity * (1 + kRounding);
}

}  // namespace

int FlowSets::add_resource(double capacity) {
  ASHLAR_ASSERT(capacity > 0);
  resources_.push_back({});
  resources_.back().capacity = capacity;
  return int(resources_.size()) - 1;
}

bool FlowSets::full(int resource) const {
  const Resource& r = resources_[size_t(resource)];
  return r.wanted >= r.capacity * (1 - kRounding);
}

int FlowSets::start(double work, double limit, std::span<const ResourceUse> uses, double now_s) {
  ASHLAR_ASSERT(work >= 0 && limit >= 0 && (limit > 0 || !uses.empty()));
  if (free_.empty()) {
    free_.push_back(int(sets_.size()));
    sets_.push_back({});
  }
  const int number = free_.back();
  free_.pop_back();
  Set& set = sets_[size_t(number)];
  set.uses.assign(uses.begin(), uses.end());
  if (limit == 0) {
    limit = std::numeric_limits<double>::infinity();
    for (const ResourceUse& use : uses)
      limit = std::min(limit, resources_[size_t(use.resource)].capacity / use.weight);
  }
  set.active = true;
  set.left = work;
  set.limit = limit;
  set.rate = 0;
  set.since_s = now_s;
  bool crowded = false;
  for (const ResourceUse& use : uses) {
    Resource& r = resources_[size_t(use.resource)];
    r.wanted += use.weight * limit;
    r.sets.push_back(number);
    crowded |= over(r.wanted, r.capacity);
  }
  if (crowded)
    solve(std::span(&number, 1), now_s);
  else
    set_rate(number, limit, now_s);
  return number;
}

void FlowSets::end(int number, double now_s) {
  Set& set = sets_[size_t(number)];
  ASHLAR_ASSERT(set.active);
  set.active = false;
  ++set.version;
  std::vector<int> others;
  for (const ResourceUse& use : set.uses) {
    Resource& r = resources_[size_t(use.resource)];
    const bool was_crowded = over(r.wanted, r.capacity);
    r.sets.erase(std::find(r.sets.begin(), r.sets.end(), number));
    r.wanted = r.sets.empty() ? 0 : r.wanted - use.weight * set.limit;
    if (was_crowded) others.insert(others.end(), r.sets.begin(), r.sets.end());
  }
  if (!others.empty()) solve(others, now_s);
  free_.push_back(number);
}

void FlowSets::set_limit(int number, double limit, double now_s) {
  Set& set = sets_[size_t(number)];
  ASHLAR_ASSERT(set.active && limit > 0);
  std::vector<int> touched = {number};
  for (const ResourceUse& use : set.uses) {
    Resource& r = resources_[size_t(use.resource)];
    const bool was_crowded = over(r.wanted, r.capacity);
    r.wanted += use.weight * (limit - set.limit);
    if (was_crowded) touched.insert(touched.end(), r.sets.begin(), r.sets.end());
  }
  set.limit = limit;
  solve(touched, now_s);
}

std::vector<int> FlowSets::take_changed() {
  std::vector<int> taken;
  for (const int set : changed_) {
    sets_[size_t(set)].changed = false;
    if (sets_[size_t(set)].active) taken.push_back(set);
  }
  changed_.clear();
  return taken;
}

// The sets that share a full resource with one of `from`, or with a set that was found.
void FlowSets::gather(std::span<const int> from) {
  found_sets_.clear();
  found_resources_.clear();
  const auto add = [&](int number) {
    Set& set = sets_[size_t(number)];
    if (set.gathered) return;
    set.gathered = true;
    set.fixed = false;
    found_sets_.push_back(number);
  };
  for (const int set : from) add(set);
  for (size_t i = 0; i < found_sets_.size(); ++i)
    for (const ResourceUse& use : sets_[size_t(found_sets_[i])].uses) {
      Resource& r = resources_[size_t(use.resource)];
      if (r.gathered || !over(r.wanted, r.capacity)) continue;
      r.gathered = true;
      r.left = r.capacity;
      r.weight = 0;
      r.num_open = int(r.sets.size());
      found_resources_.push_back(use.resource);
      for (const int set : r.sets) add(set);
    }
  for (const int set : found_sets_)
    for (const ResourceUse& use : sets_[size_t(set)].uses)
      if (Resource& r = resources_[size_t(use.resource)]; r.gathered) r.weight += use.weight;
}

void FlowSets::fix(int number, double rate) {
  Set& set = sets_[size_t(number)];
  set.fixed = true;
  set.new_rate = rate;
  for (const ResourceUse& use : set.uses) {
    Resource& r = resources_[size_t(use.resource)];
    if (!r.gathered) continue;
    r.left = std::max(0.0, r.left - use.weight * rate);
    r.weight -= use.weight;
    --r.num_open;
  }
}

void FlowSets::fill() {
  std::vector<int> by_limit = found_sets_;
  std::stable_sort(by_limit.begin(), by_limit.end(),
                   [&](int a, int b) { return sets_[size_t(a)].limit < sets_[size_t(b)].limit; });
  size_t next = 0;
  for (size_t num_fixed = 0; num_fixed < found_sets_.size();) {
    double level = std::numeric_limits<double>::infinity();
    int fullest = -1;
    for (const int r : found_resources_) {
      const Resource& resource = resources_[size_t(r)];
      if (resource.num_open == 0 || resource.left / resource.weight >= level) continue;
      level = resource.left / resource.weight;
      fullest = r;
    }
    while (next < by_limit.size() && sets_[size_t(by_limit[next])].fixed) ++next;
    if (next < by_limit.size() && sets_[size_t(by_limit[next])].limit <= level) {
      fix(by_limit[next], sets_[size_t(by_limit[next])].limit);
      ++num_fixed;
      continue;
    }
    for (const int set : resources_[size_t(fullest)].sets)
      if (!sets_[size_t(set)].fixed) {
        fix(set, level);
        ++num_fixed;
      }
  }
}

void FlowSets::solve(std::span<const int> from, double now_s) {
  gather(from);
  fill();
  for (const int r : found_resources_) resources_[size_t(r)].gathered = false;
  for (const int set : found_sets_) {
    sets_[size_t(set)].gathered = false;
    set_rate(set, sets_[size_t(set)].new_rate, now_s);
  }
}

// Where the rate stays, the end stays, bit for bit.
void FlowSets::set_rate(int number, double rate, double now_s) {
  Set& set = sets_[size_t(number)];
  if (rate == set.rate) return;
  set.left = std::max(0.0, set.left - set.rate * (now_s - set.since_s));
  set.since_s = now_s;
  set.rate = rate;
  set.end_s = now_s + set.left / rate;
  mark(number);
}

void FlowSets::mark(int number) {
  Set& set = sets_[size_t(number)];
  ++set.version;
  if (set.changed) return;
  set.changed = true;
  changed_.push_back(number);
}

}  // namespace ashlar::sim
