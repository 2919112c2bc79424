#include "ashlar/checkpoint/writers/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "ashlar/core/fields.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kMaxTimingValues = 4'000'000;
constexpr int kMaxWriters = 1 << 24;
constexpr double kMaxSeconds = 1e9;

// Formats seconds to the microsecond, in as few digits as possible; never -0.
double rounded(double seconds) {
  return std::round(seconds * 1e6) / 1e6 + 0.0;
}

// Formats text as a JSON string of ASCII.
std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

void append(const RankTimes& times, std::string& text) {
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{{\"rank\":{},\"host\":{},\"phases\":{{", times.rank, quoted(times.host));
  const char* comma = "";
  for (int p = 0; p < kNumPhases; ++p) {
    const PhaseTime& time = times.phases[size_t(p)];
    if (rounded(time.seconds) == 0 && time.bytes == 0 && time.retries == 0) continue;
    fmt::format_to(out, "{}\"{}\":[{},{},{},{}]", comma, key_of(Phase(p)), rounded(time.start_s),
                   rounded(time.seconds), time.bytes, time.retries);
    comma = ",";
  }
  text += "},\"files\":[";
  comma = "";
  for (const float seconds : times.file_s) {
    fmt::format_to(out, "{}{}", comma, rounded(seconds));
    comma = ",";
  }
  text += "]}";
}

double seconds_of(const Fields& place, std::string_view key, const Json& value) {
  const double seconds = value.is_number() ? value.get<double>() : -1;
  if (!(seconds >= 0 && seconds <= kMaxSeconds))
    place.fail("{} holds {}; expected seconds, from 0 to {}", key, shown(value), kMaxSeconds);
  return seconds;
}

int64_t count_of(const Fields& place, std::string_view key, const Json& value) {
  const auto count = integer_of(value);
  if (!count || *count < 0)
    place.fail("{} holds {}; expected an integer from 0 on", key, shown(value));
  return *count;
}

PhaseTimes parse_phases(const Fields& writer) {
  const Fields place = writer.object("phases");
  PhaseTimes phases{};
  size_t found = 0;
  for (int p = 0; p < kNumPhases; ++p) {
    const std::string_view key = key_of(Phase(p));
    if (!place.has(key)) continue;
    ++found;
    const Json& values = place.array(key);
    if (values.size() != 4)
      place.fail("{} has {} values; expected start, seconds, bytes and retries", key,
                 values.size());
    phases[size_t(p)] = {seconds_of(place, key, values[0]), seconds_of(place, key, values[1]),
                         count_of(place, key, values[2]), count_of(place, key, values[3])};
  }
  const size_t all = writer.at("phases").size();
  if (found != all) place.fail("{} of {} names are no phase", all - found, all);
  return phases;
}

RankTimes parse_writer(const Json& item, int rank, const std::string& path) {
  const Fields fields(item, fmt::format("{}: writer {}", path, writer_number(rank)));
  fields.only({"rank", "host", "phases", "files"});
  RankTimes times;
  times.rank = int(fields.integer("rank", rank, rank));
  times.host = fields.text("host");
  times.phases = parse_phases(fields);
  for (const Json& value : fields.array("files"))
    times.file_s.push_back(float(seconds_of(fields, "files", value)));
  return times;
}

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A rank's work in a phase.
struct Work {
  const RankTimes* rank;
  double seconds, bytes;
};

std::vector<Work> work_in(std::span<const RankTimes> ranks, Phase phase) {
  std::vector<Work> all;
  for (const RankTimes& rank : ranks) {
    const double seconds = rank.phases[size_t(phase)].seconds;
    if (phase == Phase::kPlan) {
      if (rank.rank != 0) all.push_back({&rank, seconds, 1});
      continue;
    }
    // Syncing and copying concern the bytes that are written.
    const Phase with_bytes = phase == Phase::kVerify ? phase : Phase::kWrite;
    const double bytes = double(rank.phases[size_t(with_bytes)].bytes);
    if (bytes > 0) all.push_back({&rank, seconds, bytes});
  }
  return all;
}

template <typename F>
double median_of(const std::vector<Work>& all, F&& value) {
  std::vector<double> values;
  for (const Work& work : all) values.push_back(value(work));
  return lower_median(std::move(values));
}

// How many times longer all of a rank's files took than the slowest `num_files` of them.
double surplus_of(std::vector<float> file_s, size_t num_files) {
  std::sort(file_s.begin(), file_s.end(), std::greater<>());
  const auto end = file_s.begin() + std::ptrdiff_t(std::min(num_files, file_s.size()));
  const double some = std::accumulate(file_s.begin(), end, 0.0);
  return some > 0 ? std::accumulate(end, file_s.end(), some) / some : 1.0;
}

void add_outliers(std::span<const RankTimes> ranks, Phase phase, std::vector<Outlier>& outliers) {
  constexpr double kDeviations = 5, kShare = 0.5, kLeast_s = 0.01;
  std::vector<Work> all = work_in(ranks, phase);
  if (all.size() < 2) return;
  const double bytes = median_of(all, [](const Work& work) { return work.bytes; });
  const auto files =
      size_t(median_of(all, [](const Work& work) { return double(work.rank->file_s.size()); }));
  std::vector<double> same_work_s;
  for (const Work& work : all) {
    const double surplus = phase == Phase::kPlan ? 1 : surplus_of(work.rank->file_s, files);
    same_work_s.push_back(work.seconds / std::max({1.0, work.bytes / bytes, surplus}));
  }
  const double median = lower_median(same_work_s);
  std::vector<double> deviations;
  for (const double seconds : same_work_s) deviations.push_back(std::abs(seconds - median));
  const double limit =
      std::max({kDeviations * lower_median(std::move(deviations)), kShare * median, kLeast_s});
  for (size_t i = 0; i < all.size(); ++i)
    if (same_work_s[i] - median > limit)
      outliers.push_back({all[i].rank->rank, all[i].rank->host, phase, all[i].seconds, median});
}

}  // namespace

std::string build_timing(const Timing& timing) {
  std::string text = fmt::format(
      "{{\"format\":\"ashlar-timing\",\"v\":1,\"step\":{},\"num_writers\":{},\"writers\":[\n",
      timing.step, timing.num_writers);
  for (const RankTimes& times : timing.ranks) {
    append(times, text);
    text += &times == &timing.ranks.back() ? "\n" : ",\n";
  }
  text += "]}\n";
  return text;
}

Timing parse_timing(std::string_view text, const std::string& path) {
  ASHLAR_REQUIRE(int64_t(text.size()) <= kMaxTimingBytes, kCorrupt,
                 "{}: {} bytes; at most {} are allowed", path, text.size(), kMaxTimingBytes);
  const Json json = parse_json(text, path, ErrorKind::kCorrupt, kMaxTimingValues);
  const Fields fields(json, path);
  if (fields.text("format") != "ashlar-timing")
    fields.fail("format is '{}'; expected 'ashlar-timing'", fields.text("format"));
  if (fields.count("v") != 1)
    fields.fail("version {} is unknown; this program reads version 1", fields.count("v"));
  fields.only({"format", "v", "step", "num_writers", "writers"});
  Timing timing;
  timing.step = fields.integer("step", 0, kMaxStep);
  timing.num_writers = int(fields.integer("num_writers", 1, kMaxWriters));
  const Json& writers = fields.array("writers");
  if (writers.size() != 1 && writers.size() != size_t(timing.num_writers))
    fields.fail("there are {} writers; expected 1 or all {}", writers.size(), timing.num_writers);
  for (const Json& item : writers)
    timing.ranks.push_back(parse_writer(item, int(timing.ranks.size()), path));
  return timing;
}

std::vector<Outlier> find_outliers(std::span<const RankTimes> ranks) {
  std::vector<Outlier> outliers;
  for (const Phase phase :
       {Phase::kPlan, Phase::kCopy, Phase::kHash, Phase::kWrite, Phase::kSync, Phase::kVerify})
    add_outliers(ranks, phase, outliers);
  const auto excess_s = [](const Outlier& outlier) { return outlier.seconds - outlier.median_s; };
  std::stable_sort(outliers.begin(), outliers.end(),
                   [&](const Outlier& a, const Outlier& b) { return excess_s(a) > excess_s(b); });
  return outliers;
}

std::string to_text(const Outlier& outlier) {
  const auto shown = [](double seconds) {
    return fmt::format("{:.{}f} s", seconds, seconds < 0.1 ? 3 : 2);
  };
  return fmt::format("{} is slow: {} took {}, median {}", place_of(outlier.rank, outlier.host),
                     name_of(outlier.phase), shown(outlier.seconds), shown(outlier.median_s));
}

std::optional<PhaseSummary> summarize(std::span<const RankTimes> ranks, Phase phase) {
  std::vector<double> seconds;
  for (const RankTimes& times : ranks) seconds.push_back(times.phases[size_t(phase)].seconds);
  const auto [min, max] = std::minmax_element(seconds.begin(), seconds.end());
  if (seconds.empty() || rounded(*max) == 0) return std::nullopt;
  // minmax_element names the last maximum.
  const auto first = std::find(seconds.begin(), seconds.end(), *max);
  return PhaseSummary{*min, lower_median(seconds), *max,
                      ranks[size_t(first - seconds.begin())].rank};
}

double store_seconds(const RankTimes& times) {
  double seconds = 0;
  for (const Phase phase : {Phase::kHash, Phase::kWrite, Phase::kSync})
    seconds += times.phases[size_t(phase)].seconds;
  return seconds;
}

}  // namespace ashlar::checkpoint
