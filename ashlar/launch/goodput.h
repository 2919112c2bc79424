// The wall time of a launch by what it was spent on: every second is in one class.
//
// The launcher charges the time since its last look to what rank 0 did then, so the classes add up
// to the wall time, whatever is between two looks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "ashlar/core/pulse.h"

namespace ashlar::launch {

enum class TimeClass : uint8_t {
  kUseful,           // steps that no attempt had done before
  kDegraded,         // such steps on fewer nodes than the run's
  kRecompute,        // steps that were lost and are done again
  kDetect,           // from the last sign of life to the name of the fault
  kFencePlace,       // from there to the next start, the back-off included
  kStartLoad,        // from the start to the first step
  kFirstStep,        // of every attempt
  kStallData,        // the ranks wait for a batch
  kStallCheckpoint,  // they wait for a save
  kCheckpoint,       // they copy the state for a save
  kEvaluate,
  kStopped,  // from the wish to stop to the end
};
inline constexpr int kNumTimeClasses = 12;
const char* name_of(TimeClass time);

// The class of the time in which rank 0 shows this page.  furthest: the step that earlier attempts
// have done.
TimeClass class_of(const PulsePage& page, int64_t furthest);

class Goodput {
 public:
  explicit Goodput(double now) : start_(now), last_(now) {}

  // Charges the time since the last call.
  void charge(TimeClass time, double now);
  // Takes so many of the seconds charged last, in which the ranks stood still, to kDetect.
  void move_to_detect(double seconds);

  double seconds(TimeClass time) const { return seconds_[size_t(time)]; }
  double wall_s() const { return last_ - start_; }
  double ettr() const;  // useful time over wall time
  // "goodput: 91.2 % useful (ETTR 0.912) of 35 s; start_load 4.1 %, ...": largest first.
  std::string text() const;

 private:
  double start_, last_;
  std::array<double, kNumTimeClasses> seconds_{};
  TimeClass recent_ = TimeClass::kStartLoad;
};

}  // namespace ashlar::launch
