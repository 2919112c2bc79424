#include "ashlar/launch/watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "ashlar/core/process.h"
#include "ashlar/core/pulse_hang.h"

namespace ashlar::launch {
namespace {

constexpr double kFactor = 8, kMost_s = 300, kFirstStep_s = 120;
constexpr double kSuspended_s = 2;  // between two looks, the launcher did not run

EvidenceKind kind_of(PulseHang::Kind kind) {
  switch (kind) {
    case PulseHang::Kind::kMissing:
      return EvidenceKind::kMissing;
    case PulseHang::Kind::kMismatch:
      return EvidenceKind::kDisagree;
    case PulseHang::Kind::kAllArrived:
      return EvidenceKind::kStuck;
    case PulseHang::Kind::kWorking:
      break;
  }
  return EvidenceKind::kSilent;
}

}  // namespace

void SilenceLimit::add(PulsePlace place, double silence_s) {
  std::vector<double>& ring = silences_[size_t(place)];
  size_t& next = next_[size_t(place)];
  if (ring.size() < kKept)
    ring.push_back(silence_s);
  else
    ring[next] = silence_s;
  next = (next + 1) % kKept;
}

double SilenceLimit::limit_s(PulsePlace place, bool stepped) const {
  if (!stepped && (place == PulsePlace::kStart || place == PulsePlace::kLoad)) return kMost_s;
  const double least_s = stepped ? hang_s_ : std::max(hang_s_, kFirstStep_s);
  std::vector<double> sorted = silences_[size_t(place)];
  if (sorted.empty()) return least_s;
  const auto high = sorted.begin() + std::ptrdiff_t((sorted.size() - 1) * 99 / 100);
  std::ranges::nth_element(sorted, high);
  return std::clamp(kFactor * *high, least_s, std::max(least_s, kMost_s));
}

Watch::Watch(std::string run_directory, double hang_s)
    : run_directory_(std::move(run_directory)), limit_(hang_s) {}

void Watch::begin(double now) {
  heard_ = looked_ = now;
  moved_ns_ = 0;
  resumed_ns_ = pulse_now_ns();
  stopped_since_.clear();
}

Watch::Sight Watch::look(const std::map<int, pid_t>& ranks, double now) {
  if (now - std::exchange(looked_, now) > kSuspended_s) {
    resumed_ns_ = pulse_now_ns();
    stopped_since_.clear();
  }
  Sight sight;
  for (auto& [rank, page] : read_pulse(run_directory_)) {
    const bool ours = std::ranges::any_of(
        ranks, [&](const auto& process) { return process.second == page.process; });
    if (ours) sight.pages.emplace(rank, std::move(page));
  }
  sight.fault = find_stopped(ranks, now);
  const std::optional<Evidence> silence = find_silence(sight, now);
  sight.silence_s = double(pulse_now_ns() - std::max(moved_ns_, resumed_ns_)) * 1e-9;
  if (!sight.fault) sight.fault = silence;
  return sight;
}

std::optional<Evidence> Watch::find_stopped(const std::map<int, pid_t>& ranks, double now) {
  for (const auto& [rank, pid] : ranks) {
    const std::optional<ProcessStat> stat = stat_of_process(pid);
    if (!stat || stat->state != 'T') {
      stopped_since_.erase(rank);
      continue;
    }
    const double since = stopped_since_.emplace(rank, now).first->second;
    if (now - since >= kStopped_s)
      return Evidence{EvidenceKind::kStopped, rank, 0,
                      fmt::format("process {} of rank {} is suspended (state T) for {:.0f} s", pid,
                                  rank, now - since)};
  }
  return std::nullopt;
}

std::optional<Evidence> Watch::find_silence(const Sight& sight, double now) {
  if (sight.pages.empty()) {
    if (now - heard_ < kMost_s) return std::nullopt;
    return Evidence{
        EvidenceKind::kSilent, -1, 0,
        fmt::format("no rank has a pulse, nor has printed a line for {:.0f} s", now - heard_)};
  }
  const auto latest = std::ranges::max_element(
      sight.pages, {}, [](const auto& page) { return page.second.moved_ns(); });
  const int64_t moved_ns = latest->second.moved_ns();
  if (moved_ns > moved_ns_) {
    if (moved_ns_ > 0) limit_.add(place_, double(moved_ns - moved_ns_) * 1e-9);
    moved_ns_ = moved_ns;
    place_ = latest->second.place;
    return std::nullopt;
  }
  const bool stepped =
      std::ranges::all_of(sight.pages, [](const auto& page) { return page.second.steps_here > 0; });
  const int64_t now_ns = pulse_now_ns();
  const double silence_s = double(now_ns - std::max(moved_ns_, resumed_ns_)) * 1e-9;
  if (silence_s < limit_.limit_s(place_, stepped)) return std::nullopt;
  const PulseHang hang = find_hang(sight.pages);
  const int rank = hang.ranks.empty() ? -1 : hang.ranks.front();
  std::string text = describe(hang, sight.pages, now_ns);
  if (rank >= 0)
    if (const auto stat = stat_of_process(sight.pages.at(rank).process))
      text += fmt::format("; rank {} is in state {}", rank, stat->state);
  return Evidence{kind_of(hang.kind), rank, 0, text};
}

int64_t memory_kills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    std::ifstream events("/sys/fs/cgroup" + line.substr(3) + "/memory.events");
    std::string name;
    for (int64_t count; events >> name >> count;)
      if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace ashlar::launch
