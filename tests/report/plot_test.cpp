// Plots as SVG files: points stand where the axes say, and what a logarithm lacks is refused.
#include "ashlar/report/plot.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::report {
namespace {

int num_times(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Plot, PutsPointsWhereTheAxesSay) {
  const std::string svg = to_svg(Plot{"a < b", "x", "y", {{"one", {{1024, 1}, {4096, 4}}}}});
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  for (const char* tick : {">1K<", ">2K<", ">4K<", ">1<", ">2<", ">4<"})
    EXPECT_EQ(num_times(svg, tick), 1) << tick;
  // The first point stands at the corner of the axes, the last opposite.
  EXPECT_NE(svg.find("points=\"80.0,400.0 620.0,50.0 \""), std::string::npos) << svg;
}

TEST(Plot, RefusesWhatALogarithmDoesNotHave) {
  const auto message_for = [](const Series& series) {
    return testing_support::message_of(ErrorKind::kConfig, [&] {
      to_svg(Plot{"t", "x", "y", {series}});
    });
  };
  EXPECT_EQ(message_for({"none", {}}), "a plot without points");
  EXPECT_EQ(message_for({"one", {{0, 1}}}), "a plot of 0, which is not above 0");
}

}  // namespace
}  // namespace ashlar::report
