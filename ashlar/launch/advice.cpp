#include "ashlar/launch/advice.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

constexpr size_t kWindowSteps = 50;
constexpr double kStallShare = 0.3;
constexpr size_t kFewestSaves = 5, kMostSaves = 50;
constexpr double kSlowPhase = 5, kShortPhase_s = 1;
constexpr double kSlowShare = 0.10, kSlowDistance = 4.45;
constexpr int64_t kFewestSamples = 400;  // so that chance moves a share by 2.5 %
constexpr int kSlowWindows = 3;
constexpr int64_t kMostBytes = int64_t{1} << 20;  // of metrics at a time

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

int64_t MetricsTail::size() const {
  const auto info = files_.stat(path_);
  return info ? info->size_bytes : 0;
}

void MetricsTail::skip() {
  try {
    offset_ = size();
  } catch (const Error&) {  // then rows of the past are taken for new ones
  }
}

// A start of the run may cut the file; then this goes on at its new end.
std::vector<Json> MetricsTail::take() {
  std::string text;
  try {
    const int64_t bytes = size();
    text.resize(size_t(std::clamp<int64_t>(bytes - offset_, 0, kMostBytes)));
    if (text.empty()) offset_ = bytes;
    if (!text.empty())
      files_.open(path_)->read_at(std::as_writable_bytes(std::span(text)), offset_);
  } catch (const Error&) {  // it was cut a moment ago, or the disk does not answer: next time
    return {};
  }
  std::vector<Json> rows;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    Json row = Json::parse(text.substr(begin, end - begin), nullptr, false);
    if (row.is_object()) rows.push_back(std::move(row));
  }
  const bool too_long = begin == 0 && int64_t(text.size()) == kMostBytes;
  offset_ += int64_t(too_long ? text.size() : begin);
  return rows;
}

std::optional<Advice> StallWatch::add_step(double stall_s, double step_s) {
  steps_.emplace_back(stall_s, step_s);
  if (steps_.size() > kWindowSteps) steps_.erase(steps_.begin());
  if (steps_.size() < kWindowSteps) return std::nullopt;
  double stalled_s = 0, all_s = 0;
  for (const auto& [stall, step] : steps_) stalled_s += stall, all_s += step;
  const bool stalls = stalled_s > kStallShare * all_s;
  if (!stalls || std::exchange(told_, true)) {
    if (stalled_s < kStallShare / 2 * all_s) told_ = false;
    return std::nullopt;
  }
  return Advice{"data stall", -1,
                fmt::format("the last {} steps waited for batches for {:.0f} % of their time",
                            kWindowSteps, 100 * stalled_s / all_s)};
}

std::vector<Advice> StallWatch::add(const Json& row) {
  std::vector<Advice> advice;
  const std::string event = row.value("event", "");
  if (event.empty() && row.contains("data_stall_s") && row.contains("step_s"))
    if (auto stall = add_step(row["data_stall_s"], row["step_s"])) advice.push_back(*stall);
  if (event != "checkpoint" || !row.contains("phases")) return advice;
  for (const auto& [phase, times] : row["phases"].items()) {
    const double seconds = times.value("max_s", 0.0);
    std::vector<double>& before = phases_[phase];
    if (before.size() >= kFewestSaves && seconds > kShortPhase_s)
      if (const double usual = lower_median(before); seconds > kSlowPhase * usual)
        advice.push_back({"slow storage", times.value("rank", -1),
                          fmt::format("step {}: the phase {} of its save took {:.1f} s on rank {}, "
                                      "usually {:.2f} s",
                                      row.value("step", int64_t{0}), phase, seconds,
                                      times.value("rank", -1), usual)});
    before.push_back(seconds);
    if (before.size() > kMostSaves) before.erase(before.begin());
  }
  return advice;
}

std::vector<Advice> SlowRanks::add(const std::map<int, PulsePage>& pages) {
  if (pages.size() < 2) return {};
  int64_t step = INT64_MAX;
  for (const auto& [rank, page] : pages) {
    step = std::min(step, page.step);
    const PulseOperation* const awaited = page.awaited();
    Samples& samples = ranks_[rank];
    ++samples.all;
    if (!awaited || !awaited->pending()) ++samples.working;
  }
  if (first_step_ < 0 || step < first_step_) first_step_ = step;
  const bool enough = ranks_.begin()->second.all >= kFewestSamples;
  if (step - first_step_ < int64_t(kWindowSteps) || !enough) return {};
  first_step_ = step;
  return end_window();
}

std::vector<Advice> SlowRanks::end_window() {
  std::vector<double> shares, distances;
  for (const auto& [rank, samples] : ranks_)
    shares.push_back(double(samples.working) / double(samples.all));
  const double median = lower_median(shares);
  for (const double share : shares) distances.push_back(std::abs(share - median));
  const double limit = median + std::max(kSlowShare, kSlowDistance * lower_median(distances));
  std::vector<Advice> advice;
  for (auto& [rank, samples] : ranks_) {
    const double share = double(samples.working) / double(samples.all);
    samples.streak = share > limit ? samples.streak + 1 : 0;
    if (samples.streak == kSlowWindows)
      advice.push_back({"slow rank", rank,
                        fmt::format("rank {} works for {:.0f} % of the time, the median rank for "
                                    "{:.0f} %: the others wait for it",
                                    rank, 100 * share, 100 * median),
                        1 - median / share});
    samples.all = samples.working = 0;
  }
  return advice;
}

std::optional<Advice> ClockWatch::add(double steady_s, double calendar_s) {
  constexpr double kMostApart_s = 1;  // a clock that is slewed moves by 0.5 ms a second
  const double offset_s = calendar_s - steady_s;
  const double jump_s = offset_s - std::exchange(offset_s_, offset_s).value_or(offset_s);
  if (std::abs(jump_s) <= kMostApart_s) return std::nullopt;
  return Advice{"clock jump", -1,
                fmt::format("the clock was set {} by {:.0f} s: times before and after that differ",
                            jump_s > 0 ? "forward" : "back", std::abs(jump_s))};
}

}  // namespace ashlar::launch
