#include "ashlar/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ashlar/core/error.h"

namespace ashlar::report {
namespace {

constexpr double kLeft = 80, kRight = 620, kTop = 50, kBottom = 400;
constexpr double kCharacter = 8;  // width in the legend, at least any font's mean

// Colours that people who confuse red and green can tell apart.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000", "#999933"};

// One logarithmic axis: whole powers of two from below the least value to above the largest.
struct Axis {
  int first = 0, last = 1;    // exponents
  double begin = 0, end = 1;  // pixels

  double at(double value) const {
    return begin + (std::log2(value) - first) / (last - first) * (end - begin);
  }
};

Axis axis_over(const Plot& plot, double std::pair<double, double>::*coordinate, double begin,
               double end) {
  double least = HUGE_VAL, most = 0;
  for (const Series& series : plot.series)
    for (const auto& point : series.points) {
      ASHLAR_REQUIRE(point.*coordinate > 0, kConfig, "a plot of {}, which is not above 0",
                     point.*coordinate);
      least = std::min(least, point.*coordinate);
      most = std::max(most, point.*coordinate);
    }
  ASHLAR_REQUIRE(most > 0, kConfig, "a plot without points");
  Axis axis{int(std::floor(std::log2(least))), int(std::ceil(std::log2(most))), begin, end};
  if (axis.first == axis.last) ++axis.last;
  return axis;
}

// 4096 -> "4K".
std::string tick_text(int exponent) {
  constexpr std::array<const char*, 5> kSuffixes = {"", "K", "M", "G", "T"};
  if (exponent < 0) return fmt::format("{:g}", std::ldexp(1.0, exponent));
  const int step = std::min(exponent / 10, int(kSuffixes.size()) - 1);
  return fmt::format("{}{}", int64_t{1} << (exponent - 10 * step), kSuffixes[size_t(step)]);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string line(double x1, double y1, double x2, double y2, const char* colour, double width) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"{}\"/>\n",
      x1, y1, x2, y2, colour, width);
}

std::string text(double x, double y, const char* anchor, const std::string& words,
                 const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped(words));
}

std::string axes(const Plot& plot, const Axis& x, const Axis& y) {
  std::string out;
  for (int e = x.first; e <= x.last; ++e) {
    const double at = x.at(std::ldexp(1.0, e));
    out +=
        line(at, kTop, at, kBottom, "#dddddd", 1) + text(at, kBottom + 20, "middle", tick_text(e));
  }
  for (int e = y.first; e <= y.last; ++e) {
    const double at = y.at(std::ldexp(1.0, e));
    out += line(kLeft, at, kRight, at, "#dddddd", 1) + text(kLeft - 8, at + 4, "end", tick_text(e));
  }
  const double middle = (kTop + kBottom) / 2;
  out += line(kLeft, kBottom, kRight, kBottom, "#000000", 1.5) +
         line(kLeft, kTop, kLeft, kBottom, "#000000", 1.5) +
         text((kLeft + kRight) / 2, kBottom + 44, "middle", plot.x_label) +
         text(24, middle, "middle", plot.y_label,
              fmt::format(" transform=\"rotate(-90 24 {})\"", middle).c_str());
  return out;
}

std::string drawn(const Series& series, const Axis& x, const Axis& y, const char* colour,
                  double legend_y) {
  std::string path, markers;
  for (const auto& [px, py] : series.points) {
    path += fmt::format("{:.1f},{:.1f} ", x.at(px), y.at(py));
    markers += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                           x.at(px), y.at(py), colour);
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                     path, colour) +
         markers + line(kRight + 20, legend_y - 4, kRight + 44, legend_y - 4, colour, 2) +
         text(kRight + 52, legend_y, "start", series.name);
}

}  // namespace

std::string to_svg(const Plot& plot) {
  using Point = std::pair<double, double>;
  const Axis x = axis_over(plot, &Point::first, kLeft, kRight);
  const Axis y = axis_over(plot, &Point::second, kBottom, kTop);
  size_t longest = 0;
  for (const Series& series : plot.series) longest = std::max(longest, series.name.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kRight + 60 + kCharacter * double(longest), kBottom + 60);
  out += text(kLeft, 28, "start", plot.title, " font-size=\"16\"") + axes(plot, x, y);
  for (size_t i = 0; i < plot.series.size(); ++i)
    out += drawn(plot.series[i], x, y, kColours[i % kColours.size()], kTop + 10 + 22 * double(i));
  return out + "</svg>\n";
}

}  // namespace ashlar::report
