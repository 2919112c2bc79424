// How it works.  fit_range fits one law to consecutive points: medians of slopes between pairs of
// points begin it, then weighted least squares run a few times, each without the points that the
// last law missed by more than three times the median error (or 5 %, if that is more).
//
// fit tries one segment; while a segment misses a point of its range by more than kGoodError, the
// best cut into one more segment replaces it, if that at least halves the sum of errors.
#include "ashlar/machine/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ashlar::machine {
namespace {

constexpr double kGoodError = 0.15, kOutlierFloor = 0.05;
constexpr size_t kMinPoints = 4, kMaxSegments = 4;

using Points = std::span<const CurvePoint>;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

std::vector<CurvePoint> sorted(Points points) {
  std::vector<CurvePoint> result(points.begin(), points.end());
  std::stable_sort(result.begin(), result.end(),
                   [](const CurvePoint& a, const CurvePoint& b) { return a.size < b.size; });
  return result;
}

// T = alpha + slope S, in us and us a byte.
struct Line {
  double alpha = 0, slope = 0;
  double at(double size) const { return alpha + slope * size; }
  double error(const CurvePoint& p) const { return std::abs(at(p.size) / p.median_us - 1); }
};

Line median_line(Points points) {
  std::vector<double> slopes, rest;
  for (size_t i = 0; i < points.size(); ++i)
    for (size_t j = i + 1; j < points.size(); ++j)
      if (points[j].size >= 4 * points[i].size)  // near sizes tell noise
        slopes.push_back((points[j].median_us - points[i].median_us) /
                         (points[j].size - points[i].size));
  Line line;
  if (!slopes.empty()) line.slope = std::max(0.0, median_of(slopes));
  for (const CurvePoint& p : points) rest.push_back(p.median_us - line.slope * p.size);
  line.alpha = std::max(0.0, median_of(rest));
  return line;
}

// Least squares of ((alpha + slope S) / T - 1)^2 with neither below zero.
Line least_squares(Points points) {
  double a = 0, b = 0, c = 0, d = 0, e = 0;
  for (const CurvePoint& p : points) {
    const double u = 1 / p.median_us, v = p.size / p.median_us;
    a += u * u, b += u * v, c += v * v, d += u, e += v;
  }
  const double determinant = a * c - b * b;
  Line line;
  if (determinant > 1e-12 * a * c) {
    line.alpha = (d * c - e * b) / determinant;
    line.slope = (a * e - b * d) / determinant;
  }
  if (line.slope <= 0 || determinant <= 1e-12 * a * c) line = {d / a, 0};
  if (line.alpha < 0) line = {0, e / c};
  return line;
}

struct Fitted {
  Line line;
  double median_error = 0, sum_of_squares = 0, largest = 0;
};

Fitted fit_range(Points points) {
  Fitted result;
  result.line = median_line(points);
  std::vector<CurvePoint> kept;
  for (int round = 0; round < 4; ++round) {
    std::vector<double> errors;
    for (const CurvePoint& p : points) errors.push_back(result.line.error(p));
    const double limit = std::max(3 * median_of(errors), kOutlierFloor);
    kept.clear();
    for (const CurvePoint& p : points)
      if (round == 0 || result.line.error(p) <= limit) kept.push_back(p);
    if (kept.size() < std::min(points.size(), kMinPoints - 1)) break;
    result.line = least_squares(kept);
  }
  std::vector<double> errors;
  for (const CurvePoint& p : points) {
    const double error = result.line.error(p);
    errors.push_back(error);
    result.sum_of_squares += error * error;
    result.largest = std::max(result.largest, error);
  }
  result.median_error = median_of(errors);
  return result;
}

struct Cut {
  size_t begin, end;
  Fitted fitted;
};

// The best two ranges in place of one; an empty list if none is much better.
std::vector<Cut> cut_in_two(Points points, const Cut& whole) {
  std::vector<Cut> best;
  double least = 0.25 * whole.fitted.sum_of_squares;  // half of the errors
  for (size_t at = whole.begin + kMinPoints; at + kMinPoints <= whole.end; ++at) {
    const Fitted left = fit_range(points.subspan(whole.begin, at - whole.begin)),
                 right = fit_range(points.subspan(at, whole.end - at));
    const double sum = left.sum_of_squares + right.sum_of_squares;
    if (sum >= least) continue;
    least = sum;
    best = {{whole.begin, at, left}, {at, whole.end, right}};
  }
  return best;
}

}  // namespace

double Fit::time_us(double size, double factor) const {
  const CurveSegment* segment = &segments.front();
  for (const CurveSegment& s : segments)
    if (s.from <= size) segment = &s;
  return segment->alpha_us + (segment->gbps > 0 ? factor * size / segment->gbps * 1e-3 : 0);
}

std::optional<Fit> fit(Points unsorted, double factor) {
  std::vector<CurvePoint> points = sorted(unsorted);
  std::erase_if(points, [](const CurvePoint& p) { return !(p.median_us > 0) || p.size < 0; });
  if (points.size() < kMinPoints) return std::nullopt;
  std::vector<Cut> cuts = {{0, points.size(), fit_range(points)}};
  for (size_t i = 0; i < cuts.size() && cuts.size() < kMaxSegments;) {
    const std::vector<Cut> two =
        cuts[i].fitted.largest > kGoodError ? cut_in_two(points, cuts[i]) : std::vector<Cut>();
    if (two.empty()) {
      ++i;
      continue;
    }
    cuts[i] = two[0];
    cuts.insert(cuts.begin() + int64_t(i) + 1, two[1]);
  }
  Fit result;
  for (const Cut& cut : cuts) {
    const Line& line = cut.fitted.line;
    result.segments.push_back({cut.begin == 0 ? 0 : points[cut.begin].size, line.alpha,
                               line.slope > 0 ? factor / line.slope * 1e-3 : 0,
                               cut.fitted.median_error});
    result.largest_error = std::max(result.largest_error, cut.fitted.largest);
  }
  return result;
}

std::optional<double> latency_floor_us(Points points) {
  std::vector<double> small;
  for (const CurvePoint& p : points)
    if (p.size <= 1024) small.push_back(p.median_us);
  if (small.empty()) return std::nullopt;
  return median_of(small);
}

std::optional<double> saturating_size(Points unsorted, double share) {
  const std::vector<CurvePoint> points = sorted(unsorted);
  const auto law = fit(points, 1);
  const bool smooth = law && law->largest_error <= kGoodError;
  std::vector<double> bandwidths;
  for (const CurvePoint& p : points) {
    const double time = smooth ? law->time_us(p.size, 1) : p.median_us;
    bandwidths.push_back(time > 0 ? p.size / time : 0);
  }
  if (points.empty()) return std::nullopt;
  const double largest = *std::max_element(bandwidths.begin(), bandwidths.end());
  std::optional<double> result;
  for (size_t i = points.size(); i-- > 0 && largest > 0 && bandwidths[i] >= share * largest;)
    result = points[i].size;
  return result;
}

double saturating_size(double alpha_us, double gbps, double factor, double share) {
  return share / (1 - share) * alpha_us * gbps * 1e3 / factor;
}

std::optional<double> interpolated_us(Points unsorted, double size) {
  const std::vector<CurvePoint> points = sorted(unsorted);
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].size == size) return points[i].median_us;
    if (i == 0 || points[i].size < size || points[i - 1].size > size) continue;
    const CurvePoint &low = points[i - 1], &high = points[i];
    if (low.size <= 0 || low.median_us <= 0 || high.median_us <= 0) return std::nullopt;
    const double share = std::log(size / low.size) / std::log(high.size / low.size);
    return low.median_us * std::pow(high.median_us / low.median_us, share);
  }
  return std::nullopt;
}

}  // namespace ashlar::machine
