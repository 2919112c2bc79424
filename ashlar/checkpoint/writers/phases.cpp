#include "ashlar/checkpoint/writers/phases.h"

#include <fmt/core.h>

#include <cmath>

#include "ashlar/core/text.h"

namespace ashlar::checkpoint {

std::string_view name_of(Phase phase) {
  constexpr std::string_view kNames[kNumPhases] = {
      "waiting",   "planning",          "copying",    "hashing",      "writing",       "syncing",
      "reporting", "joining the parts", "committing", "reading back", "removing steps"};
  return kNames[int(phase)];
}

std::string_view key_of(Phase phase) {
  constexpr std::string_view kKeys[kNumPhases] = {"wait",   "plan",   "copy",  "hash",
                                                  "write",  "sync",   "part",  "merge",
                                                  "commit", "verify", "remove"};
  return kKeys[int(phase)];
}

// Only phases that took time are sent; the bits of a number say which they are.
void put(control::WireWriter& out, const RankTimes& times) {
  out.put(uint32_t(times.rank));
  out.put_text(times.host);
  uint32_t present = 0;
  for (int p = 0; p < kNumPhases; ++p) present |= uint32_t(times.phases[size_t(p)].any()) << p;
  out.put(present);
  for (const PhaseTime& time : times.phases) {
    if (!time.any()) continue;
    out.put(time.start_s);
    out.put(time.seconds);
    out.put(time.bytes);
    out.put(time.retries);
  }
  out.put_block(std::as_bytes(std::span(times.file_s)));
}

RankTimes get_rank_times(control::WireReader& in) {
  RankTimes times;
  const auto seconds = [](double value) {
    ASHLAR_REQUIRE(std::isfinite(value) && value >= 0, kComm, "{} seconds are none", value);
    return value;
  };
  times.rank = int(in.get<uint32_t>());
  times.host = in.get_text();
  const auto present = in.get<uint32_t>();
  ASHLAR_REQUIRE(present >> kNumPhases == 0, kComm, "phases {:#x} are none", present);
  for (int p = 0; p < kNumPhases; ++p) {
    if (!(present >> p & 1)) continue;
    PhaseTime& time = times.phases[size_t(p)];
    time.start_s = seconds(in.get<double>());
    time.seconds = seconds(in.get<double>());
    time.bytes = in.get<int64_t>();
    time.retries = in.get<int64_t>();
  }
  control::WireReader file_s(in.get_block());
  while (!file_s.rest().empty()) times.file_s.push_back(float(seconds(file_s.get<float>())));
  return times;
}

void PhaseRecorder::add(Phase phase, Clock::time_point begin, int64_t bytes, int64_t retries) {
  add_until(phase, begin, Clock::now(), bytes, retries);
}

void PhaseRecorder::add_until(Phase phase, Clock::time_point begin, Clock::time_point end,
                              int64_t bytes, int64_t retries) {
  const std::lock_guard lock(mutex_);
  PhaseTime& time = times_[size_t(phase)];
  if (time.seconds == 0) time.start_s = std::chrono::duration<double>(begin - start_).count();
  time.seconds += std::chrono::duration<double>(end - begin).count();
  time.bytes += bytes;
  time.retries += retries;
}

PhaseTimes PhaseRecorder::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

std::string place_of(int rank, const std::string& host) {
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on {}", rank, host);
}

std::string to_text(const RankStatus& status, double now) {
  std::string text = place_of(status.rank, status.host);
  text += fmt::format(": {}, {:.0f} s", status.silent ? "silent" : name_of(status.phase),
                      now - status.since);
  if (!status.silent && status.total_bytes > 0)
    text += fmt::format(", {} of {}", format_bytes(status.bytes), format_bytes(status.total_bytes));
  return text;
}

}  // namespace ashlar::checkpoint
