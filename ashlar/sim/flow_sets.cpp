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
    members.push_back({number, int32_t(set.uses.size())});
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

std::vector<int> FlowSets::take_changed() {
  solve();
  std::vector<int> taken;
  for (const int set : changed_) {
    sets_[size_t(set)].changed = false;
    if (sets_[size_t(set)].active) taken.push_back(set);
  }
  changed_.clear();
  return taken;
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

// The sets that share a full resource with one that was touched, or with a set that was found.
void FlowSets::gather() {
  found_sets_.clear();
  found_resources_.clear();
  const auto add = [&](int number) {
    Set& set = sets_[size_t(number)];
    if (set.gathered || !set.active) return;
    set.gathered = true;
    set.fixed = false;
    found_sets_.push_back(number);
  };
  for (const int set : touched_sets_) {
    sets_[size_t(set)].touched = false;
    add(set);
  }
  for (const int resource : touched_resources_) {
    Resource& r = resources_[size_t(resource)];
    r.touched = false;
    for (const Member& member : r.members) add(member.set);
  }
  touched_sets_.clear();
  touched_resources_.clear();
  for (size_t i = 0; i < found_sets_.size(); ++i)
    for (const Use& use : sets_[size_t(found_sets_[i])].uses) {
      Resource& r = resources_[size_t(use.resource)];
      if (r.gathered || !r.crowded()) continue;
      r.gathered = true;
      r.left = r.capacity;
      r.weight = 0;
      r.num_open = int(r.members.size());
      found_resources_.push_back(use.resource);
      for (const Member& member : r.members) add(member.set);
    }
  for (const int set : found_sets_)
    for (const Use& use : sets_[size_t(set)].uses)
      if (Resource& r = resources_[size_t(use.resource)]; r.gathered) r.weight += use.weight;
}

void FlowSets::fix(int number, double rate) {
  Set& set = sets_[size_t(number)];
  set.fixed = true;
  set.new_rate = rate;
  for (const Use& use : set.uses) {
    Resource& r = resources_[size_t(use.resource)];
    if (!r.gathered) continue;
    r.left = std::max(0.0, r.left - use.weight * rate);
    r.weight -= use.weight;
    --r.num_open;
  }
}

// Levels only rise while sets are fixed, so one in the heap is at most the present one.
void FlowSets::fill() {
  by_limit_.clear();
  levels_.clear();
  for (const int set : found_sets_)
    by_limit_.push_back({sets_[size_t(set)].limit, int32_t(by_limit_.size())});
  std::sort(by_limit_.begin(), by_limit_.end());
  for (const int r : found_resources_)
    levels_.push_back({resources_[size_t(r)].level(), int32_t(levels_.size())});
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>{});
  for (auto next = by_limit_.begin(); next != by_limit_.end();) {
    const int set = found_sets_[size_t(next->place)];
    if (sets_[size_t(set)].fixed || levels_.empty() || next->value <= levels_.front().value) {
      if (!sets_[size_t(set)].fixed) fix(set, next->value);
      ++next;
      continue;
    }
    std::pop_heap(levels_.begin(), levels_.end(), std::greater<>{});
    const Resource& r = resources_[size_t(found_resources_[size_t(levels_.back().place)])];
    const double level = r.num_open > 0 ? r.level() : 0;
    if (r.num_open > 0 && level > levels_.back().value) {
      levels_.back().value = level;
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>{});
      continue;
    }
    levels_.pop_back();
    for (const Member& member : r.members)
      if (!sets_[size_t(member.set)].fixed) fix(member.set, level);
  }
}

void FlowSets::solve() {
  if (touched_sets_.empty() && touched_resources_.empty()) return;
  gather();
  fill();
  for (const int r : found_resources_) resources_[size_t(r)].gathered = false;
  for (const int set : found_sets_) {
    sets_[size_t(set)].gathered = false;
    set_rate(set, sets_[size_t(set)].new_rate);
  }
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
