// Rates of calls that all ranks make at once: each rank times its own repeats, and a row has the
// median over the ranks, and the rates of all.
#pragma once

#include "ashlar/bench/machine/part.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::bench {

class RateTable {
 public:
  // at_unit: of the sizes, "B", "tokens"; unit: of the rates, with so many units of work each.
  RateTable(const Rig& rig, Findings& findings, std::string at_unit, std::string unit,
            double units_of_work);
  ~RateTable();  // adds the curves to the findings

  // Times the body, which does so much work; false, without a call, if there is no time left.
  bool row(const std::string& subject, double at, double work, function_ref<void()> body);
  const Repeats& last() const { return last_; }  // rates of the last row
  // The ranks' medians of the last row as a fleet, in which a slow rank stands out.
  void add_fleet(machine::Subject subject);

 private:
  const Rig& rig_;
  Findings& findings_;
  const std::string at_unit_, unit_;
  const double units_of_work_;
  std::vector<machine::RateCurve> curves_;
  std::string last_subject_;
  std::vector<double> last_of_ranks_;
  Repeats last_;
};

// Runs the body once to warm up, then for some time and at least 5 times: microseconds of each.
std::vector<double> times_of(const Rig& rig, function_ref<void()> body);

}  // namespace ashlar::bench
