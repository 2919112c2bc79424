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
// The same calls give the same bits: nothing depends on addresses or on the time of day.
#pragma once

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

  // When the set will be done at its present rate, and how often that has changed.
  double end_s(int set) const { return sets_[size_t(set)].end_s; }
  int64_t version(int set) const { return sets_[size_t(set)].version; }
  // Sets whose end has moved since the last call, each once, new ones included.
  std::vector<int> take_changed();

 private:
  struct Resource {
    double capacity = 0;
    double wanted = 0;  // by sets at their limits
    std::vector<int> sets;
    // While rates are solved.
    bool gathered = false;
    double left = 0, weight = 0;  // of the capacity, and of the sets without a rate
    int num_open = 0;             // sets without a rate
  };
  struct Set {
    bool active = false, changed = false, gathered = false, fixed = false;
    double left = 0, rate = 0, limit = 0, new_rate = 0;
    double since_s = 0, end_s = 0;
    int64_t version = 0;
    std::vector<ResourceUse> uses;
  };

  void solve(std::span<const int> from, double now_s);
  void gather(std::span<const int> from);
  void fill();
  void fix(int set, double rate);
  void set_rate(int set, double rate, double now_s);
  void mark(int set);

  std::vector<Resource> resources_;
  std::vector<Set> sets_;
  std::vector<int> free_, changed_;
  std::vector<int> found_sets_, found_resources_;  // those that are solved together
};

}  // namespace ashlar::sim
