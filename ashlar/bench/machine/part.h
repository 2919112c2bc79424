// The seam of machine measurements: a part measures one aspect of a machine (its collectives, its
// memory, its disk) on all ranks and returns Findings, in the terms of a machine profile.
//
//   Rig        what a part works with: the ranks, their threads, how thorough to be
//   Findings   what it found: numbers and curves for the profile, JSON rows, a table
//   parts()    all parts, in the order of `ashlar bench all`
//
// session.h runs parts, watches for other programs, judges the numbers and keeps them.  To add a
// part, write a file beside this one and a line in parts.cpp.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/threads.h"
#include "ashlar/machine/profile.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::bench {

struct Rig {
  comm::Group& ranks;
  Allocator& allocator;
  Threads& threads;           // of this rank's kernels
  std::string engine;         // "self", "thread", "mpi", "mpi-native"
  std::string command;        // of the measurement, for the profile: "ashlar bench stream --quick"
  std::string date;           // YYYY-MM-DD
  bool quick = false;         // fewer sizes and repeats
  int64_t staging_bytes = 0;  // of a lane of the exact engines
  std::string directory = ".";  // on the disk to measure
  std::string only = "";        // rows whose subject holds this text; "": all
  // The point of a curve that a stopped run of the same command left in the profile, with --resume.
  // Rank 0's; the others have none.
  std::function<std::optional<machine::RatePoint>(const std::string& subject, double at)> kept =
      [](const std::string&, double) { return std::nullopt; };
  // Whether there is time for the next row.  All ranks ask together, before each row; false after
  // --budget seconds or a signal, and then for all further rows.
  std::function<bool()> goes_on = [] { return true; };
  // At the end of a row, all ranks together: whether others disturbed it, so that it should be
  // measured once more.
  std::function<bool()> again = [] { return false; };
  // The number of the row that goes_on() began: member "row" of its JSON; -1 outside of a session.
  std::function<int64_t()> row = [] { return int64_t{-1}; };

  // The type in which products are faster: bf16 or fp32, the same on all ranks.
  DType products() const;
  bool leads() const { return ranks.rank() == 0; }
  machine::Provenance provenance() const { return {machine::Origin::kMeasured, command, date, 0}; }
  machine::Quantity quantity(double value, std::string unit, double spread) const {
    return {value, std::move(unit), machine::Origin::kMeasured, command, date, spread};
  }
};

struct Findings {
  machine::Profile profile;               // only what was measured; complete on rank 0
  std::vector<machine::Measured> faults;  // wrong results
  // Numbers that every rank has of its own, to be judged by their median: a slow rank stands out.
  std::vector<std::vector<machine::Measured>> fleets;
  std::vector<machine::Judgement> judged;    // by the part itself
  std::optional<machine::Judgement> demand;  // of the command, whatever else ran meanwhile
  std::vector<std::string> rows;             // JSON objects
  std::string text;                          // a table for people
  // Lines of the text to mark if others disturbed their rows: ends, and numbers of rows.
  std::vector<std::pair<size_t, int64_t>> marks;
  void add_line(const std::string& line, int64_t row) {
    text += line;
    marks.emplace_back(text.size(), row);
    text += "\n";
  }
  int64_t num_left_out = 0;  // rows, when time was up
};

struct Part {
  std::string_view name;      // "stream": of `ashlar bench stream`
  std::string_view measures;  // for --help
  int least_ranks;
  Findings (*measure)(const Rig& rig);
};
std::span<const Part> parts();

// The parts, each in the file of its name.
Findings measure_collectives(const Rig& rig);
Findings measure_p2p(const Rig& rig);
Findings measure_product_rates(const Rig& rig);
Findings measure_stream(const Rig& rig);
Findings measure_layers(const Rig& rig);
Findings measure_launch(const Rig& rig);
Findings measure_storage(const Rig& rig);
// Some rows of several parts; none of parts(), for it has nothing that they lack.
Findings measure_smoke(const Rig& rig);

// Microseconds since `start`, to a nanosecond.
double us_since(Clock::time_point start);
// Processor time of the calling thread.
double thread_seconds();
// Values of all ranks, in their order.  All ranks call it.
std::vector<double> of_ranks(comm::Group& ranks, double value);
// Element by element the largest of all ranks' values, of which all have equally many.
std::vector<double> slowest_of_ranks(comm::Group& ranks, std::vector<double> values);

// Order statistics of repeats.
struct Repeats {
  double p10 = 0, median = 0, p90 = 0;
  double cv = 0;  // standard deviation / mean
  double spread() const { return median > 0 ? (p90 - p10) / median : 0; }
};
Repeats repeats_of(std::vector<double> values);  // at least one

}  // namespace ashlar::bench
