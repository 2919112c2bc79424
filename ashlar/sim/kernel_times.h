// Seconds of a kernel on a machine, from the best of three sources:
//
//   exact       the table of the profile (docs/formats/machine.md) has this work
//   neighbour   it has less and more work of the same op and type; the time lies between theirs,
//               by the op's own law a + b flop + c bytes, fitted to all its rows
//   law         the same law beyond the table's range; for an op of which the table knows one work
//               or none, max(flop / rate, bytes / bandwidth) / efficiency, with the efficiency of
//               that one, or 1
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ashlar/machine/kernel_table.h"
#include "ashlar/machine/profile.h"
#include "ashlar/sim/program.h"

namespace ashlar::sim {

enum class TimeSource : uint8_t { kExact, kNeighbour, kLaw };
inline constexpr std::array<std::string_view, 3> kTimeSources = {"exact", "neighbour", "law"};

struct WorkTime {
  double seconds = 0;
  TimeSource source = TimeSource::kExact;
};

class WorkTimes {
 public:
  // Errors   kData: a row has a type that does not exist.
  WorkTimes(const machine::Profile& profile, std::span<const machine::TimedKernel> table);

  // Errors   kConfig: a law needs a rate that the profile lacks, with the command that measures it.
  WorkTime of(const KernelWork& work) const;
  // The most ranks that computed while the table was measured; 0 without a table.
  int64_t num_ranks() const { return num_ranks_; }
  // Keys of the profile on which laws have rested so far.
  const std::set<std::string>& used() const { return used_; }

 private:
  using Key = std::tuple<std::string, DType, int32_t, int32_t, int32_t, int32_t, int64_t, int64_t>;
  using OpKey = std::pair<std::string, DType>;
  struct Point {
    double flop = 0, bytes = 0, us = 0;
  };
  struct Op {
    std::vector<Point> points;
    std::array<double, 3> law{};  // us: a + b flop + c bytes
    // By the law's time, ascending: measured / law.
    std::vector<std::pair<double, double>> errors;
  };

  static void fit(Op& op);
  double roofline_us(const KernelWork& work) const;
  double rate(std::initializer_list<const char*> keys) const;  // the first that the profile has

  const machine::Profile& profile_;
  std::map<Key, double> exact_us_;
  std::map<OpKey, Op> ops_;
  int64_t num_ranks_ = 0;
  mutable std::set<std::string> used_;
};

// a, b, c >= 0 that give the least sum of ((a + b flop + c bytes) / us - 1)^2 over rows of
// {flop, bytes, us}.
std::array<double, 3> fit_law(const std::vector<std::array<double, 3>>& rows);

}  // namespace ashlar::sim
