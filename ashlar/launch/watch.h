// The signs of life of running ranks: their pulse pages and their states in /proc.
//
// Stopped  a process has been in state T for kStopped_s: somebody suspended it.
// Hang     no page has changed for longer than the place of the last change ever takes:
//          8 times the 99th percentile of its last 200 silences, at least launch.hang_s, at most
//          300 s; at least 120 s during a first step, and 300 s before.  Where no rank has a page,
//          as with a full /dev/shm, lines count instead.
// A launcher that was suspended itself begins to watch anew.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/pulse.h"
#include "ashlar/launch/cause.h"

namespace ashlar::launch {

// How long the pages may stand before that is a hang.
class SilenceLimit {
 public:
  explicit SilenceLimit(double hang_s) : hang_s_(hang_s) {}
  void add(PulsePlace place, double silence_s);          // one that ended
  double limit_s(PulsePlace place, bool stepped) const;  // stepped: a first step is done

 private:
  static constexpr size_t kKept = 200;
  double hang_s_;
  std::array<std::vector<double>, kNumPulsePlaces> silences_;  // rings
  std::array<size_t, kNumPulsePlaces> next_{};
};

class Watch {
 public:
  static constexpr double kStopped_s = 3;
  Watch(std::string run_directory, double hang_s);

  void begin(double now);                  // an attempt starts
  void hear(double now) { heard_ = now; }  // a rank printed a line
  // ranks: those that have joined, with their processes.  Fault: once for each.
  struct Sight {
    std::map<int, PulsePage> pages;  // of these processes
    std::optional<Evidence> fault;
    double silence_s = 0;  // of all pages
  };
  Sight look(const std::map<int, pid_t>& ranks, double now);

 private:
  std::optional<Evidence> find_stopped(const std::map<int, pid_t>& ranks, double now);
  std::optional<Evidence> find_silence(const Sight& sight, double now);

  const std::string run_directory_;
  SilenceLimit limit_;
  double heard_ = 0, looked_ = 0;
  int64_t moved_ns_ = 0, resumed_ns_ = 0;
  PulsePlace place_ = PulsePlace::kStart;  // of the last change
  std::map<int, double> stopped_since_;
};

// Kills for lack of memory so far in this process's control group; 0 if the kernel does not say.
int64_t memory_kills();

}  // namespace ashlar::launch
