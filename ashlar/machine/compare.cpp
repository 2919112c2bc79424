#include "ashlar/machine/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ashlar/core/text.h"

namespace ashlar::machine {
namespace {

// Sizes of one range are limited by the same things: latency, caches, links.
constexpr std::array<double, 6> kRangeEnds = {
    65536, 1 << 20, 1 << 24, double(1 << 28), double(int64_t{1} << 32), 1e300};

size_t range_of(double size) {
  return size_t(
      std::find_if(kRangeEnds.begin(), kRangeEnds.end(), [&](double end) { return size < end; }) -
      kRangeEnds.begin());
}

std::string range_text(size_t range) {
  const auto bytes = [](double size) { return format_bytes(int64_t(size)); };
  if (range == 0) return fmt::format("below {}", bytes(kRangeEnds[0]));
  if (range + 1 == kRangeEnds.size()) return fmt::format("from {}", bytes(kRangeEnds[range - 1]));
  return fmt::format("{} to {}", bytes(kRangeEnds[range - 1]), bytes(kRangeEnds[range]));
}

std::string origin_text(Origin origin, const std::string& date) {
  return date.empty() ? std::string(to_string(origin))
                      : fmt::format("{} {}", to_string(origin), date);
}

// Geometric means of pairs of numbers, and the median of their variation.
class Means {
 public:
  void add(double measured, double expected, double cv) {
    measured_ += std::log(measured);
    expected_ += std::log(expected);
    cvs_.push_back(cv);
  }
  bool empty() const { return cvs_.empty(); }
  double measured() const { return std::exp(measured_ / double(cvs_.size())); }
  double expected() const { return std::exp(expected_ / double(cvs_.size())); }
  double cv() {
    std::nth_element(cvs_.begin(), cvs_.begin() + long(cvs_.size() / 2), cvs_.end());
    return cvs_[cvs_.size() / 2];
  }

 private:
  double measured_ = 0, expected_ = 0;
  std::vector<double> cvs_;
};

Subject subject_of(std::string_view key) {
  if (key.starts_with("compute.")) return Subject::kProduct;
  if (key.starts_with("memory.")) return Subject::kMemory;
  if (key.starts_with("launch.")) return Subject::kLaunch;
  if (key.starts_with("storage.")) return Subject::kStorage;
  return Subject::kCollective;
}

Subject subject_of(const RateCurve& curve) {
  if (curve.subject.starts_with("disk ")) return Subject::kStorage;
  return curve.at_unit == "B" ? Subject::kMemory : Subject::kProduct;
}

std::string title_of(const CollectiveCurve& c) {
  return fmt::format(
      "{} {} on {} ranks{} ({})", to_string(c.op), c.dtype, c.ranks,
      c.groups == 1 && c.shape == "all" ? "" : fmt::format(" of {} groups {}", c.groups, c.shape),
      c.engine);
}

bool is_judged(const ProfileKey& key) {
  return !key.command.empty() && key.unit != "GFLOP" && key.name != "launch.lane_cores";
}

bool larger_is_better(std::string_view key, std::string_view unit) {
  return unit != "us" && key != "contention.products" && key != "storage.scatter";
}

const CollectiveCurve* curve_in(const Profile& profile, const CollectiveCurve& like) {
  for (const CollectiveCurve& c : profile.collectives)
    if (c.engine == like.engine && c.op == like.op && c.dtype == like.dtype &&
        c.shape == like.shape && c.ranks == like.ranks && c.groups == like.groups)
      return &c;
  return nullptr;
}

const RateCurve* curve_in(const Profile& profile, const RateCurve& like) {
  for (const RateCurve& c : profile.rates)
    if (c.subject == like.subject && c.threads == like.threads && c.unit == like.unit) return &c;
  return nullptr;
}

class Comparison {
 public:
  explicit Comparison(const Disturbance& disturbance) : disturbance_(disturbance) {}

  void add(const std::string& name, Subject subject, const Quantity& q, const Quantity& expected,
           bool larger_is_better) {
    Measured m = measured_of(name, subject, 0);
    m.value = q.value;
    m.unit = q.unit;
    m.larger_is_better = larger_is_better;
    m.cv = cv_of_spread(q.spread);
    judge_by(m, expected.value, expected.origin, expected.date);
  }

  // Times below 64 KiB, where latency counts, and bandwidths above.
  void add(const CollectiveCurve& curve, const CollectiveCurve& expected) {
    std::array<Means, kRangeEnds.size()> ranges;
    for (const CurvePoint& p : curve.points) {
      const size_t range = range_of(p.size);
      const auto us = interpolated_us(expected.points, p.size);
      if (!us || *us <= 0 || p.median_us <= 0) continue;
      const double scale = range == 0 ? 0 : 1e-3 * p.size * curve.factor();
      const auto value = [&](double time_us) { return range == 0 ? time_us : scale / time_us; };
      ranges[range].add(value(p.median_us), value(*us),
                        cv_of_spread((p.p90_us - p.p10_us) / p.median_us));
    }
    for (size_t range = 0; range < ranges.size(); ++range) {
      if (ranges[range].empty()) continue;
      Measured m = measured_of(fmt::format("{}, {}", title_of(curve), range_text(range)),
                               Subject::kCollective, curve.provenance.foreign_share);
      m.value = ranges[range].measured();
      m.unit = range == 0 ? "us" : "GB/s";
      m.larger_is_better = range > 0;
      m.cv = ranges[range].cv();
      judge_by(m, ranges[range].expected(), expected.provenance.origin, expected.provenance.date);
    }
  }

  void add(const RateCurve& curve, const RateCurve& expected) {
    std::array<Means, kRangeEnds.size()> ranges;
    const bool sizes = curve.at_unit == "B";
    for (const RatePoint& p : curve.points)
      for (const RatePoint& e : expected.points)
        if (e.at == p.at && e.median > 0 && p.median > 0)
          ranges[sizes ? range_of(p.at) : 0].add(p.median, e.median,
                                                 cv_of_spread((p.p90 - p.p10) / p.median));
    for (size_t range = 0; range < ranges.size(); ++range) {
      if (ranges[range].empty()) continue;
      Measured m = measured_of(
          sizes ? fmt::format("{}, {}", curve.subject, range_text(range)) : curve.subject,
          subject_of(curve), curve.provenance.foreign_share);
      m.value = ranges[range].measured();
      m.unit = curve.unit;
      m.larger_is_better = curve.unit != "us";
      m.cv = ranges[range].cv();
      judge_by(m, ranges[range].expected(), expected.provenance.origin, expected.provenance.date);
    }
  }

  std::vector<Judgement> judgements;

 private:
  Measured measured_of(std::string name, Subject subject, double foreign_share) const {
    Measured m;
    m.name = std::move(name);
    m.subject = subject;
    m.foreign_share = std::max(foreign_share, disturbance_.foreign_share);
    m.neighbour = disturbance_.neighbour;
    return m;
  }
  void judge_by(const Measured& m, double expected, Origin origin, const std::string& date) {
    judgements.push_back(judge(m, Expected{expected, origin_text(origin, date)}));
  }

  const Disturbance& disturbance_;
};

}  // namespace

std::vector<Judgement> compare(const Profile& measured, const Profile& expected) {
  return compare(measured, expected, {});
}

std::vector<Judgement> compare(const Profile& measured, const Profile& expected,
                               const Disturbance& disturbance) {
  Comparison comparison(disturbance);
  for (const ProfileKey& key : profile_keys()) {
    const Quantity *q = measured.find(key.name), *e = expected.find(key.name);
    if (!q || !e || !is_judged(key)) continue;
    comparison.add(std::string(key.name), subject_of(key.name), *q, *e,
                   larger_is_better(key.name, key.unit));
  }
  for (const Mount& mount : measured.mounts)
    for (const Mount& other : expected.mounts)
      for (const auto& [key, q] : mount.quantities)
        if (const auto e = other.quantities.find(key);
            mount.path == other.path && e != other.quantities.end())
          comparison.add(fmt::format("{} of {}", key, mount.path), Subject::kStorage, q, e->second,
                         larger_is_better(key, q.unit));
  for (const CollectiveCurve& curve : measured.collectives)
    if (const CollectiveCurve* other = curve_in(expected, curve)) comparison.add(curve, *other);
  for (const RateCurve& curve : measured.rates)
    if (const RateCurve* other = curve_in(expected, curve)) comparison.add(curve, *other);
  return std::move(comparison.judgements);
}

std::vector<std::string> only_in(const Profile& profile, const Profile& other) {
  std::vector<std::string> names;
  for (const ProfileKey& key : profile_keys())
    if (is_judged(key) && profile.find(key.name) && !other.find(key.name))
      names.emplace_back(key.name);
  for (const CollectiveCurve& curve : profile.collectives)
    if (!curve_in(other, curve)) names.push_back(title_of(curve));
  for (const RateCurve& curve : profile.rates)
    if (!curve_in(other, curve)) names.push_back(curve.subject);
  return names;
}

}  // namespace ashlar::machine
