#include "ashlar/train/records/chart.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ashlar::train {
namespace {

TEST(Chart, FallingLossRunsFromTopLeftToBottomRight) {
  Curve loss;
  for (int64_t step = 1; step <= 200; ++step) loss.emplace_back(step, 9.0 - 0.04 * double(step));
  const std::string text = render_chart(loss, {{200, 0.5}}, 20, 5);
  const std::string expected_head = "         loss (*) and validation loss (o)\n";
  ASSERT_TRUE(text.starts_with(expected_head)) << text;
  const std::string top = text.substr(expected_head.size(),
                                      text.find('\n', expected_head.size()) - expected_head.size());
  EXPECT_EQ(top.find('*'), 10u) << text;  // "   8.780 |" and then the first column
  EXPECT_NE(text.find('o'), std::string::npos);
  EXPECT_NE(text.find("step 1"), std::string::npos);
  EXPECT_NE(text.find("200"), std::string::npos);
}

TEST(Chart, TooFewStepsGiveNothing) {
  EXPECT_EQ(render_chart({}, {}), "");
  EXPECT_EQ(render_chart({{1, 2.0}}, {}), "");
  EXPECT_NE(render_chart({{1, 2.0}, {2, 1.0}}, {}), "");
}

TEST(Chart, NonFiniteAndFlatCurvesAreDrawn) {
  EXPECT_NE(render_chart({{1, 2.0}, {2, NAN}, {3, 2.0}}, {}), "");
}

TEST(Chart, ReadsRowsAndLetsTheLaterOneCount) {
  const RunCurves curves = read_curves(
      "{\"step\": 1, \"loss\": 5.0}\n{\"step\": 2, \"loss\": 4.0}\n{\"event\": \"resume\", "
      "\"step\": 1}\n"
      "{\"step\": 2, \"loss\": 4.5}\n{\"event\": \"evaluation\", \"step\": 2, \"validation_loss\": "
      "4.75}\n"
      "{\"step\": 3, \"loss\": null}\n{\"step\": 4, \"lo");
  EXPECT_EQ(curves.loss, (Curve{{1, 5.0}, {2, 4.5}}));
  EXPECT_EQ(curves.validation, (Curve{{2, 4.75}}));
}

}  // namespace
}  // namespace ashlar::train
