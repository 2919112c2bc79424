#include "ashlar/sim/flow_sets.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "ashlar/core/error.h"

namespace ashlar::sim {
namespace {

constexpr double kRounding = 1e-9;  // of sums of wanted shares

}  // namespace

bool FlowSets::Resource::crowded() const {
  return wanted > capacity * (1 + kRounding);
}

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
  go_to(now_s);
  if (free_.empty()) {
    free_.push_back(int(sets_.size()));
    sets_.push_back({});
  }
  const int number = free_.back();
  free_.pop_back();
  Set& set = sets_[size_t(number)];
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
  set.uses.clear();
  for (const ResourceUse& use : uses) {
    auto& members = resources_[size_t(use.resource)].members;
    members.push_back({number, int32_t(set.uses.size()), use.weight});
    set.uses.push_back({use.resource, int32_t(members.size()) - 1, use.weight});
    want(use.resource, use.weight * limit);
  }
  touch(number);
  return number;
}

void FlowSets::end(int number, double now_s) {
  go_to(now_s);
  Set& set = sets_[size_t(number)];
  ASHLAR_ASSERT(set.active);
  set.active = false;
  ++set.version;
  for (const Use& use : set.uses) {
    leave(use);
    want(use.resource, -use.weight * set.limit);
  }
  free_.push_back(number);
}

void FlowSets::set_limit(int number, double limit, double now_s) {
  go_to(now_s);
  Set& set = sets_[size_t(number)];
  ASHLAR_ASSERT(set.active && limit > 0);
  for (const Use& use : set.uses) want(use.resource, use.weight * (limit - set.limit));
  set.limit = limit;
  touch(number);
}

const std::vector<int>& FlowSets::take_changed() {
  solve();
  taken_.clear();
  for (const int set : changed_) {
    sets_[size_t(set)].changed = false;
    if (sets_[size_t(set)].active) taken_.push_back(set);
  }
  changed_.clear();
  return taken_;
}

void FlowSets::go_to(double now_s) {
  if (now_s == now_s_) return;
  solve();
  now_s_ = now_s;
}

// The rates of a resource's sets change only if they want all of it before or after.
void FlowSets::want(int number, double more) {
  Resource& r = resources_[size_t(number)];
  const bool was_crowded = r.crowded();
  r.wanted = r.members.empty() ? 0 : r.wanted + more;
  if (r.touched || !(was_crowded || r.crowded())) return;
  r.touched = true;
  touched_resources_.push_back(number);
}

void FlowSets::touch(int number) {
  Set& set = sets_[size_t(number)];
  if (set.touched) return;
  set.touched = true;
  touched_sets_.push_back(number);
}

void FlowSets::leave(const Use& use) {
  auto& members = resources_[size_t(use.resource)].members;
  const Member last = members.back();
  members[size_t(use.member)] = last;
  sets_[size_t(last.set)].uses[size_t(last.use)].member = use.member;
  members.pop_back();
}

// The sets that share a full resource with this one, or with a set that was found.
void FlowSets::gather(int number) {
  const auto add = [&](int found) {
    Set& set = sets_[size_t(found)];
    if (set.gathered) return;
    set.gathered = true;
    set.fixed = false;
    found_sets_.push_back(found);
  };
  size_t next = found_sets_.size();
  for (add(number); next < found_sets_.size(); ++next)
    for (const Use& use : sets_[size_t(found_sets_[next])].uses) {
      Resource& r = resources_[size_t(use.resource)];
      if (r.gathered || !r.crowded()) continue;
      r.gathered = true;
      r.left = r.capacity;
      r.weight = 0;
      r.num_open = int(r.members.size());
      found_resources_.push_back(use.resource);
      for (const Member& member : r.members) {
        r.weight += member.weight;
        add(member.set);
      }
    }
}

void FlowSets::fix(int number, double rate) {
  Set& set = sets_[size_t(number)];
  set.fixed = true;
  for (const Use& use : set.uses) {
    Resource& r = resources_[size_t(use.resource)];
    if (!r.gathered) continue;
    r.left = std::max(0.0, r.left - use.weight * rate);
    r.weight -= use.weight;
    --r.num_open;
  }
  set_rate(number, rate);
}

// Levels only rise while sets are fixed, so one in the heap is at most the present one.
void FlowSets::fill(std::span<const int> sets, std::span<const int> resources) {
  by_limit_.clear();
  levels_.clear();
  for (const int set : sets)
    by_limit_.push_back({sets_[size_t(set)].limit, int32_t(by_limit_.size())});
  std::sort(by_limit_.begin(), by_limit_.end());
  for (const int r : resources)
    levels_.push_back({resources_[size_t(r)].level(), int32_t(levels_.size())});
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>{});
  for (auto next = by_limit_.begin(); next != by_limit_.end();) {
    const int set = sets[size_t(next->place)];
    if (sets_[size_t(set)].fixed) {
      ++next;
      continue;
    }
    if (levels_.empty() || next->value <= levels_.front().value) {
      fix(set, next->value);
      continue;
    }
    std::pop_heap(levels_.begin(), levels_.end(), std::greater<>{});
    const Found fullest = levels_.back();
    levels_.pop_back();
    const Resource& r = resources_[size_t(resources[size_t(fullest.place)])];
    if (r.num_open == 0) continue;
    const double level = r.level();
    if (level > fullest.value) {
      levels_.push_back({level, fullest.place});
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>{});
      continue;
    }
    for (const Member& member : r.members)
      if (!sets_[size_t(member.set)].fixed) fix(member.set, level);
  }
}

void FlowSets::solve_around(int number) {
  const Set& set = sets_[size_t(number)];
  if (set.gathered || !set.active) return;
  const size_t num_sets = found_sets_.size(), num_resources = found_resources_.size();
  gather(number);
  if (found_resources_.size() == num_resources) return set_rate(number, set.limit);
  fill(std::span(found_sets_).subspan(num_sets),
       std::span(found_resources_).subspan(num_resources));
}

void FlowSets::solve() {
  for (const int set : touched_sets_) {
    sets_[size_t(set)].touched = false;
    solve_around(set);
  }
  for (const int resource : touched_resources_) {
    resources_[size_t(resource)].touched = false;
    for (const Member& member : resources_[size_t(resource)].members) solve_around(member.set);
  }
  touched_sets_.clear();
  touched_resources_.clear();
  for (const int set : found_sets_) sets_[size_t(set)].gathered = false;
  for (const int resource : found_resources_) resources_[size_t(resource)].gathered = false;
  found_sets_.clear();
  found_resources_.clear();
}

// Where the rate stays, the end stays, bit for bit.
void FlowSets::set_rate(int number, double rate) {
  Set& set = sets_[size_t(number)];
  if (rate == set.rate) return;
  set.left = std::max(0.0, set.left - set.rate * (now_s_ - set.since_s));
  set.since_s = now_s_;
  set.rate = rate;
  set.end_s = now_s_ + set.left / rate;
  ++set.version;
  if (set.changed) return;
  set.changed = true;
  changed_.push_back(number);
}

}  // namespace ashlar::sim
