// Signs that a run goes on, but more slowly than it could.  They are reported, no more.
//
//   data stall       waiting for batches took more than 30 % of the last 50 steps
//   slow storage     a phase of a save took more than 5 times the median of the saves before
//   slow rank        a rank waits for the others less than they do: it works for a larger share of
//                    the time than the median rank by 10 % and 4.45 times the median distance from
//                    it, in 3 windows of 50 steps each
//   clock jump       the calendar's clock moved by more than 1 s against the steady one, by which
//                    the launcher measures
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/core/pulse.h"

namespace ashlar::launch {

struct Advice {
  std::string name;  // "data stall"
  int rank = -1;     // -1: none in particular
  std::string text;
  double share = 0;  // of the time, by which the run would be faster without that rank; 0: unknown
};

// The rows that a run appends to metrics.jsonl while it is watched.
class MetricsTail {
 public:
  MetricsTail(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  void skip();               // to the end of the file
  std::vector<Json> take();  // whole rows since the last call; lines that are no JSON are left out

 private:
  int64_t size() const;
  FileSystem& files_;
  const std::string path_;
  int64_t offset_ = 0;
};

class StallWatch {
 public:
  std::vector<Advice> add(const Json& row);  // of metrics.jsonl

 private:
  std::optional<Advice> add_step(double stall_s, double step_s);
  std::vector<std::pair<double, double>> steps_;       // waiting and all time of the last ones
  bool told_ = false;                                  // of the present data stall
  std::map<std::string, std::vector<double>> phases_;  // slowest rank's seconds, by phase
};

class SlowRanks {
 public:
  // The pages of all ranks, several times a second.
  std::vector<Advice> add(const std::map<int, PulsePage>& pages);

 private:
  std::vector<Advice> end_window();
  struct Samples {
    int64_t all = 0, working = 0;
    int streak = 0;  // windows in a row in which it was slow
  };
  std::map<int, Samples> ranks_;
  int64_t first_step_ = -1;  // of the window
};

class ClockWatch {
 public:
  // Both clocks at one moment, s.
  std::optional<Advice> add(double steady_s, double calendar_s);

 private:
  std::optional<double> offset_s_;  // of the calendar's clock
};

}  // namespace ashlar::launch
