#include "ashlar/launch/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ashlar/core/text.h"

namespace ashlar::launch {

const char* name_of(TimeClass time) {
  constexpr std::array<const char*, kNumTimeClasses> kNames{
      "useful",     "degraded",   "recompute",        "detect",     "fence_place", "start_load",
      "first_step", "stall_data", "stall_checkpoint", "checkpoint", "evaluate",    "stopped"};
  return kNames[size_t(time)];
}

void Goodput::charge(TimeClass time, double now) {
  seconds_[size_t(time)] += now - last_;
  last_ = now;
  recent_ = time;
}

// The ranks stood in one place: their silence was charged to the class of that place.
void Goodput::move_to_detect(double seconds) {
  double& charged = seconds_[size_t(recent_)];
  const double moved = std::min(seconds, charged);
  charged -= moved;
  seconds_[size_t(TimeClass::kDetect)] += moved;
}

double Goodput::ettr() const {
  return wall_s() > 0 ? seconds(TimeClass::kUseful) / wall_s() : 0.0;
}

std::string Goodput::text() const {
  std::array<int, kNumTimeClasses> order;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int i) { return seconds_[size_t(i)]; });
  std::string text = fmt::format("goodput: {:.1f} % useful (ETTR {:.3f}) of {}", 100 * ettr(),
                                 ettr(), format_duration(wall_s()));
  const char* separator = "; ";
  for (const int i : order) {
    if (TimeClass(i) == TimeClass::kUseful || seconds_[size_t(i)] <= 0) continue;
    text += fmt::format("{}{} {:.1f} %", separator, name_of(TimeClass(i)),
                        100 * seconds_[size_t(i)] / wall_s());
    separator = ", ";
  }
  return text;
}

TimeClass class_of(const PulsePage& page, int64_t furthest) {
  switch (page.place) {
    case PulsePlace::kStart:
    case PulsePlace::kLoad:
      return TimeClass::kStartLoad;
    case PulsePlace::kSaveCopy:
      return TimeClass::kCheckpoint;
    case PulsePlace::kSaveWait:
      return TimeClass::kStallCheckpoint;
    case PulsePlace::kEvaluate:
      return TimeClass::kEvaluate;
    default:
      break;
  }
  if (page.steps_here == 0) return TimeClass::kFirstStep;
  if (page.place == PulsePlace::kData) return TimeClass::kStallData;
  return page.step < furthest ? TimeClass::kRecompute : TimeClass::kUseful;
}

}  // namespace ashlar::launch
