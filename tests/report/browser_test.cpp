// Pages in a real browser: what people see, at the width of a desk and of a telephone.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <regex>
#include <sstream>

#include "ashlar/core/files.h"
#include "ashlar/report/page.h"
#include "ashlar/report/plan_page.h"
#include "ashlar/report/profile_page.h"
#include "tests/report/samples.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::report {
namespace {

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return output;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.append(buffer.data(), n);
  pclose(pipe);
  return output;
}

Page full_page() {
  Page page;
  page.title = "A page with every kind of chart";
  page.banner = "3 numbers are low";
  page.mood = Mood::kWarning;
  page.facts = {{"A long name without any break", std::string(200, 'x')}};
  LineChart lines{"Bandwidth over sizes", {"bytes", true}, {"GB/s", true}, {}, "A note."};
  for (int i = 0; i < 9; ++i) {
    Line line{"line " + std::to_string(i), {}, i % 2 == 0};
    for (int k = 0; k < 20; ++k)
      line.points.emplace_back(std::pow(2, k + 10), k == 7 ? std::nan("") : (i + 1) * (k + 1.0));
    if (i == 1)
      for (const auto& [x, y] : line.points) line.range.emplace_back(0.9 * y, 1.1 * y);
    lines.lines.push_back(std::move(line));
  }
  lines.x.ticks = Ticks::kBytes;
  lines.lines.push_back({"law", {{1024, 1}, {1 << 20, 40}}, false, {}, 1});
  LineChart flat{"A flat line", {"step"}, {"loss"}, {{"loss", {{1, 2}, {2, 2}}}}, ""};
  LineChart single{"A single point", {"step"}, {"loss"}, {{"loss", {{1, 2}}}}, ""};
  HeatMap map{"Heat", "column", "row", "GB/s", {}, {}, {}, ""};
  for (int i = 0; i < 64; ++i) map.columns.push_back("column " + std::to_string(i));
  for (int i = 0; i < 16; ++i) map.rows.push_back("a row with a long name " + std::to_string(i));
  for (int i = 0; i < 64 * 16; ++i) map.values.push_back(i % 37 == 0 ? std::nan("") : i);
  BarChart bars{"Bars", "save", "ms", {"10", "20"}, {{"copy", {4, 5}}, {"write", {6, 0}}}, ""};
  for (int i = 0; i < 9; ++i) bars.series.push_back({"phase " + std::to_string(i), {1, 2}});
  PageTable table{"A wide table", {}, {}, ""};
  for (int i = 0; i < 30; ++i) table.columns.push_back("column " + std::to_string(i));
  table.rows.push_back(std::vector<std::string>(30, "some text"));
  page.sections = {{"Lines", "Text.", {lines, flat, single}}, {"Others", "", {map, bars, table}}};
  return page;
}

struct View {
  const char* name;
  Page (*page)();
  int width;
};

Page of_machine() {
  const machine::Profile profile = sample_profile();
  return profile_page({&profile, 1});
}
Page of_plans() {
  const machine::Profile profile = sample_profile();
  const PlanFile plans[] = {{"dp.json", sample_plan(1)}, {"tp.json", sample_plan(2)}};
  return plan_page(plans, &profile);
}

int num_charts(const Page& page) {
  int count = 0;
  for (const PageSection& section : page.sections)
    for (const Item& item : section.items) count += !std::holds_alternative<PageTable>(item);
  return count;
}

class BrowserTest : public testing::TestWithParam<View> {
 protected:
  void SetUp() override {
    if (output_of("command -v chromium").empty()) GTEST_SKIP() << "no chromium is installed";
  }
};

TEST_P(BrowserTest, ShowsEveryChartWithoutAMessageAndWithoutScrolling) {
  const testing_support::TemporaryDirectory directory;
  const auto files = posix_files();
  const Page page = GetParam().page();
  std::string html = to_html(page);
  // The page's own measures, left where the dump shows them.
  const std::string probe =
      "<script>document.body.dataset.scroll = document.documentElement.scrollWidth - "
      "document.documentElement.clientWidth;\n"
      "document.body.dataset.marks = [...document.querySelectorAll('figure')].map(f => "
      "f.querySelectorAll('.mark').length).join(' ');</script></body>";
  html.replace(html.rfind("</body>"), 7, probe);
  const std::string path = (directory / "page.html").string();
  write_text(*files, path, html);
  const std::string chromium =
      "chromium --headless --no-sandbox --disable-gpu --enable-logging=stderr --user-data-dir=" +
      (directory / "profile").string() + " --window-size=" + std::to_string(GetParam().width) +
      ",900 --dump-dom file://" + path + " 2>" + (directory / "log").string();
  const std::string dom = output_of(chromium);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(dom, found, std::regex("data-scroll=\"(-?[0-9]+)\"")))
      << dom.substr(0, 500);
  EXPECT_LE(std::stoi(found[1]), 0) << "pixels to scroll sideways";
  ASSERT_TRUE(std::regex_search(dom, found, std::regex("data-marks=\"([0-9 ]+)\"")));
  std::istringstream marks(found[1]);
  int charts = 0;
  for (int count; marks >> count; ++charts) EXPECT_GT(count, 0) << "chart " << charts;
  EXPECT_EQ(charts, num_charts(page));
  EXPECT_FALSE(std::regex_search(dom, std::regex(" (d|x|y|cx|cy|width|height)=\"[^\"]*NaN")));
  const std::string log = read_text(*files, (directory / "log").string());
  EXPECT_EQ(log.find("CONSOLE"), std::string::npos) << log;
}
INSTANTIATE_TEST_SUITE_P(
    Pages, BrowserTest,
    testing::Values(View{"AllKinds", full_page, 1280}, View{"AllKinds", full_page, 400},
                    View{"Machine", of_machine, 1280}, View{"Machine", of_machine, 400},
                    View{"Plans", of_plans, 1280}, View{"Plans", of_plans, 400}),
    [](const auto& info) { return info.param.name + std::to_string(info.param.width); });

// The relative luminance of #rrggbb (WCAG 2).
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[3] = {0.2126, 0.7152, 0.0722};
  for (size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(ReportColours, TextIsReadableOnBothGrounds) {
  const std::string css = asset_text("page");
  const size_t dark = css.find("prefers-color-scheme: dark");
  ASSERT_NE(dark, std::string::npos);
  for (const std::string& half : {css.substr(0, dark), css.substr(dark)}) {
    const auto colour = [&](const std::string& name) {
      std::smatch found;
      EXPECT_TRUE(std::regex_search(half, found, std::regex("--" + name + ": (#[0-9a-f]{6})")))
          << name;
      return luminance(found[1]);
    };
    const auto contrast = [](double a, double b) {
      return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05);
    };
    for (const char* name : {"ink", "quiet", "link", "good", "warning", "bad"}) {
      EXPECT_GE(contrast(colour(name), colour("ground")), 4.5) << name;
      EXPECT_GE(contrast(colour(name), colour("plane")), 4.5) << name;
    }
    for (int i = 0; i < 8; ++i)  // lines: WCAG asks 3:1 of graphics
      EXPECT_GE(contrast(colour("c" + std::to_string(i)), colour("ground")), 3) << i;
  }
}

}  // namespace
}  // namespace ashlar::report
