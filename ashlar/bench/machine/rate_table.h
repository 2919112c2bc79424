// Rates of calls that all ranks make at once: each rank times its own repeats, and a row has the
// median over the ranks, and the rates of all.
#pragma once

#include "ashlar/bench/machine/part.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::bench {

class RateTable {
 public:
  // at_unit: of the sizes, "B", "tokens"; unit: of the rates, with so many units of work each;
  // has_floors: rows have a column for the least time and one for its share of the median's.
  RateTable(const Rig& rig, Findings& findings, std::string at_unit, std::string unit,
            double units_of_work, int subject_width = 34, bool has_floors = false);
  ~RateTable();  // adds the curves to the findings

  // No rate can be above that of ceiling(), in units, which all ranks call and which may be a
  // little higher when it is measured again.  A row that still is above it gets the verdict
  // above-model, and no place in the profile.
  void limit(std::function<double()> ceiling, std::string from);

  // Whether the session measures this subject (Rig::only).
  bool wants(std::string_view subject) const { return subject.find(rig_.only) != subject.npos; }
  // Times the body, which does so much work; false, without a call, if there is no time left.
  // A row that a stopped run of the command measured is not measured again.
  bool row(const std::string& subject, double at, double work, function_ref<void()> body,
           double floor_us = 0);
  // While a rank is slow beside the others, rows are measured again after a pause, up to so many
  // times in all, and each rank's fastest time counts: something out of sight, as another machine
  // on the same processor, may have slowed its core for a moment.
  void look_again(int rounds) { rounds_ = rounds; }
  // Adds to the last row: text to its line, and members to its JSON.
  void note(const std::string& text, const std::vector<std::pair<std::string, double>>& members);
  const Repeats& last() const { return last_; }  // rates of the last row
  bool last_is_stored() const { return last_is_stored_; }
  double ceiling() const { return ceiling_value_; }  // the highest so far; 0: none
  // The rates that ranks held in the last row, stalls included, as a fleet, in which a slow rank
  // stands out.
  void add_fleet(machine::Subject subject);

 private:
  std::vector<double> best_rates(double work, function_ref<void()> body);
  bool take_kept(const std::string& subject, double at);
  bool is_above_ceiling();
  void store(const std::string& subject, double at);
  void print(const std::string& subject, double at, double work, double floor_us);
  void add_judgement(const std::string& subject, double at);

  const Rig& rig_;
  Findings& findings_;
  const std::string at_unit_, unit_;
  const double units_of_work_;
  const int subject_width_;
  const bool has_floors_;
  int rounds_ = 1;
  bool has_head_ = false;
  std::vector<machine::RateCurve> curves_;
  std::string last_subject_;
  std::vector<double> last_of_ranks_, held_by_ranks_;
  Repeats last_;
  bool last_is_stored_ = true;
  std::function<double()> ceiling_;
  std::string ceiling_from_;
  double ceiling_value_ = 0;
};

// Warms up (bench/kernel_times.h), then runs the body for some time and at least 5 times:
// microseconds of each.
std::vector<double> times_of(const Rig& rig, function_ref<void()> body);

}  // namespace ashlar::bench
