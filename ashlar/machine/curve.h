// Times of an operation over message sizes: the measured points, the law fitted to them, and the
// sizes from which on its bandwidth is saturated.
//
//   T(S) = alpha + k S / B      k the factor between busbw and algbw (laws.h)
//
// Where an implementation changes its protocol at some size, one law does not fit; then each
// segment of sizes gets its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ashlar::machine {

struct CurvePoint {
  double size = 0;                               // bytes
  double p10_us = 0, median_us = 0, p90_us = 0;  // of one operation
};

// The law of the points with sizes from `from` up to the next segment's.
struct CurveSegment {
  double from = 0;
  double alpha_us = 0;
  double gbps = 0;      // B; 0 where times do not grow with the size
  double residual = 0;  // the median of |law - point| / point
};

struct Fit {
  std::vector<CurveSegment> segments;  // in the order of sizes; at least one
  double largest_error = 0;            // the largest |law - point| / point, outliers included
  // alpha of the smallest and B of the largest sizes.
  double alpha_us() const { return segments.front().alpha_us; }
  double gbps() const { return segments.back().gbps; }
  double time_us(double size, double factor) const;
};

// Least squares of relative errors without outliers (begun by Theil and Sen's medians of slopes).
// Nothing for fewer than 4 points: numbers are not made up.  Points need not be sorted.
std::optional<Fit> fit(std::span<const CurvePoint> points, double factor);

// The median time of sizes up to 1 KiB; nothing without such a size.
std::optional<double> latency_floor_us(std::span<const CurvePoint> points);

// The smallest measured size from which on every bandwidth is at least `share` of the largest: by
// the law where it fits all points, so that noise of single points does not decide, else by points.
std::optional<double> saturating_size(std::span<const CurvePoint> points, double share);
// The law's own answer: share / (1 - share) alpha B / k.
double saturating_size(double alpha_us, double gbps, double factor, double share);

// The median time of a size between two points, interpolated in both logarithms; nothing outside of
// the measured sizes.
std::optional<double> interpolated_us(std::span<const CurvePoint> points, double size);

}  // namespace ashlar::machine
