#include "ashlar/checkpoint/phases.h"

#include <fmt/core.h>

#include "ashlar/core/text.h"

namespace ashlar::checkpoint {

std::string_view name_of(Phase phase) {
  constexpr std::string_view kNames[kNumPhases] = {
      "waiting",   "planning",          "copying",    "hashing",      "writing",       "syncing",
      "reporting", "joining the parts", "committing", "reading back", "removing steps"};
  return kNames[int(phase)];
}

void PhaseRecorder::add(Phase phase, Clock::time_point begin, int64_t bytes, int64_t retries) {
  const std::lock_guard lock(mutex_);
  PhaseTime& time = times_[size_t(phase)];
  if (time.seconds == 0) time.start_s = std::chrono::duration<double>(begin - start_).count();
  time.seconds += seconds_since(begin);
  time.bytes += bytes;
  time.retries += retries;
}

PhaseTimes PhaseRecorder::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

std::string to_text(const RankStatus& status, double now) {
  std::string text = fmt::format("rank {}", status.rank);
  if (!status.host.empty()) text += " on " + status.host;
  text += fmt::format(": {}, {:.0f} s", status.silent ? "silent" : name_of(status.phase),
                      now - status.since);
  if (!status.silent && status.total_bytes > 0)
    text += fmt::format(", {} of {}", format_bytes(status.bytes), format_bytes(status.total_bytes));
  return text;
}

}  // namespace ashlar::checkpoint
