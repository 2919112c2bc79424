// How work shares a machine: resources with a capacity (the cores of a node, a link, a disk), and
// flow sets that use several of them at one rate.
//
//   kernel       work in seconds of one thread, on the cores of its node with the weight of its
//                threads; its rate is at most 1
//   collective   bytes of its busiest edge, on all links of its ring or tree at once
//
// Rates are max-min fair (progressive filling): all rates rise together until a resource is full
// or a set is at its own limit, which stops the sets concerned, and so on.  Sets whose resources
// have room for everybody run at their limits and touch nobody; only sets that meet on a full
// resource, directly or through others, are solved again when one of them starts or ends.  Max-min
// fairness: Bertsekas and Gallager, "Data Networks", 1992, 6.5.2.
//
// All that starts, ends and gets another limit at one time is solved at once, when the ends are
// asked for or time goes on.  Solving takes O(n log n) steps for sets that meet with n uses.
//
// The same calls give the same bits: nothing depends on addresses or on the time of day.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::sim {

struct ResourceUse {
  int32_t resource = 0;
  double weight = 1;  // capacity that a rate of 1 takes
};

class FlowSets {
 public:
  // capacity: above 0.
  int add_resource(double capacity);
  double capacity(int resource) const { return resources_[size_t(resource)].capacity; }
  // Whether sets want at least all of it.
  bool full(int resource) const;

  // A set with that much work, at time now.  limit: of its rate; 0: what its resources give one
  // set alone.  Its number is reused after its end.
  int start(double work, double limit, std::span<const ResourceUse> uses, double now_s);
  void end(int set, double now_s);
  void set_limit(int set, double limit, double now_s);

  // When the set will be done at its present rate.
  double end_s(int set) {
    solve();
    return sets_[size_t(set)].end_s;
  }
  // How often that has been found to change; it changes too when the set ends.
  int64_t version(int set) const { return sets_[size_t(set)].version; }
  // Sets whose end has moved since the last call, each once, new ones included.
  const std::vector<int>& take_changed();

 private:
  struct Member {
    int32_t set = 0, use = 0;  // the resource is uses[use] of the set
    double weight = 1;
  };
  struct Resource {
    double capacity = 0;
    double wanted = 0;  // by sets at their limits
    std::vector<Member> members;
    bool touched = false;
    // While rates are solved.
    bool gathered = false;
    double left = 0, weight = 0;  // of the capacity, and of the sets without a rate
    int num_open = 0;             // sets without a rate
    bool crowded() const;
    double level() const { return left / weight; }
  };
  struct Use {
    int32_t resource = 0;
    int32_t member = 0;  // its place in Resource::members
    double weight = 1;
  };
  struct Set {
    bool active = false, changed = false, touched = false, gathered = false, fixed = false;
    double left = 0, rate = 0, limit = 0;
    double since_s = 0, end_s = 0;
    int64_t version = 0;
    std::vector<Use> uses;
  };
  // The limit of a found set, or the level of a found resource.
  struct Found {
    double value = 0;
    int32_t place = 0;  // among those of its group
    auto operator<=>(const Found&) const = default;
  };

  void go_to(double now_s);
  void want(int resource, double more);
  void touch(int set);
  void leave(const Use& use);
  void solve();
  void solve_around(int set);
  void gather(int set);
  void fill(std::span<const int> sets, std::span<const int> resources);
  void fix(int set, double rate);
  void set_rate(int set, double rate);

  std::vector<Resource> resources_;
  std::vector<Set> sets_;
  std::vector<int> free_, changed_, taken_;
  double now_s_ = 0;
  std::vector<int> touched_sets_, touched_resources_;  // since rates were solved
  // Sets and resources of the present solution, one group of sets that meet after the other.
  std::vector<int> found_sets_, found_resources_;
  std::vector<Found> by_limit_, levels_;  // of a group: a sorted list, a heap with the least first
};

}  // namespace ashlar::sim
