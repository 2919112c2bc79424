#include "ashlar/report/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "tests/support/errors.h"

namespace ashlar::report {
namespace {

Page small_page() {
  Page page;
  page.title = "Run <b>& \"x\"";
  page.facts = {{"Steps", "2"}};
  LineChart chart{"Loss </script>", {"step"}, {"nats"}, {}, ""};
  chart.lines.push_back({"loss", {{1, 3.5}, {2, std::nan("")}, {3, 2.25}}});
  HeatMap map{"Load", "step", "expert", "of the mean", {"1", "2"}, {"0"}, {1, std::nan("")}, ""};
  BarChart bars{"Saves", "step", "ms", {"10"}, {{"copy", {4}}, {"write", {6}}}, ""};
  page.sections.push_back({"All", "", {chart, map, bars}});
  return page;
}

// The block of data of a page.
Json data_of(const std::string& html) {
  const std::string begin = "id=\"data\">";
  const size_t at = html.find(begin) + begin.size();
  return Json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(ReportPage, DataHoldsTheCharts) {
  const Json data = data_of(to_html(small_page()));
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0]["kind"], "lines");
  EXPECT_EQ(data[0]["title"], "Loss </script>");
  EXPECT_EQ(data[0]["lines"][0]["points"], Json::parse("[[1,3.5],[2,null],[3,2.25]]"));
  EXPECT_EQ(data[1]["values"], Json::parse("[1,null]"));
  EXPECT_EQ(data[2]["series"][0]["values"], Json::parse("[6]"));
}

TEST(ReportPage, TextIsNeverMarkup) {
  const std::string html = to_html(small_page());
  EXPECT_NE(html.find("<title>Run &lt;b&gt;&amp; &quot;x&quot;</title>"), std::string::npos);
  EXPECT_EQ(html.find("Loss </script>"), std::string::npos);
  EXPECT_NE(html.find("Loss \\u003c/script>"), std::string::npos);
}

TEST(ReportPage, EveryChartHasItsRows) {
  const std::string html = to_html(small_page());
  EXPECT_NE(html.find("<tr><td>3</td><td>2.25</td></tr>"), std::string::npos);
  EXPECT_EQ(html.find("<tr><td>2</td><td></td></tr>"), std::string::npos);  // a gap
  EXPECT_NE(html.find("<tr><td>0</td><td>1</td><td></td></tr>"), std::string::npos);
  EXPECT_NE(html.find("<tr><td>10</td><td>4</td><td>6</td></tr>"), std::string::npos);
}

TEST(ReportPage, BarsShowTheLargestPartsAndTheRestAsOne) {
  BarChart bars{"Phases", "save", "ms", {"10", "20"}, {}, ""};
  for (int i = 0; i < 12; ++i)
    bars.series.push_back({"phase " + std::to_string(i), {double(i), std::nan("")}});
  Page page;
  page.title = "Saves";
  page.sections = {{"Saves", "", {bars}}};
  const std::string html = to_html(page);
  const Json series = data_of(html)[0]["series"];
  ASSERT_EQ(series.size(), 8u);
  EXPECT_EQ(series[0]["name"], "phase 11");
  EXPECT_EQ(series[6]["name"], "phase 5");
  EXPECT_EQ(series[7], Json::parse(R"({"name":"other","values":[10,0]})"));
  EXPECT_NE(html.find("<th>phase 0, ms</th>"), std::string::npos) << "rows have all parts";
}

TEST(ReportPage, RowsHaveRangesAndNoGuides) {
  LineChart chart{"Time", {"bytes", true, Ticks::kBytes}, {"us"}, {}, ""};
  chart.lines.push_back({"a", {{1, 3}, {2, 4}}, true, {{2, 5}, {3, 6}}});
  chart.lines.push_back({"law", {{1, 3}, {1.5, 4}}, false, {}, 0});
  chart.lines.push_back({"b", {{2, 7}}});
  Page page;
  page.title = "Curves";
  page.sections = {{"Curves", "", {chart}}};
  const std::string html = to_html(page);
  EXPECT_NE(html.find("<tr><th>bytes</th><th>a</th><th>from</th><th>to</th><th>b</th></tr>\n"),
            std::string::npos);
  EXPECT_NE(html.find("<tr><td>2</td><td>4</td><td>3</td><td>6</td><td>7</td></tr>\n"),
            std::string::npos);
  EXPECT_EQ(html.find("<td>1.5</td>"), std::string::npos);
  EXPECT_EQ(data_of(html)[0]["lines"][1]["guide_of"], 0);
}

// The page loads nothing: no address but names of namespaces and the one in d3's first line.
TEST(ReportPage, LoadsNothing) {
  std::string html = to_html(small_page());
  for (const char* known :
       {"http://www.w3.org/", "https://d3js.org v5.16.0", "d3 5.16.0, https://d3js.org"})
    for (size_t at; (at = html.find(known)) != std::string::npos;)
      html.erase(at, std::string_view(known).size());
  EXPECT_EQ(html.find("http"), std::string::npos) << html.substr(html.find("http") - 80, 200);
  for (const char* word : {"<link rel=\"stylesheet", "<img", " src=\"", "@import", "url("})
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  EXPECT_EQ(std::string(asset_text("charts")).find("fetch("), std::string::npos);
}

TEST(ReportPage, RefusesNothing) {
  Page page;
  page.title = "empty";
  EXPECT_NE(testing_support::message_of(ErrorKind::kConfig, [&] { to_html(page); }).find("empty"),
            std::string::npos);
}

TEST(Thinned, KeepsExtremesEndsAndGaps) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 100000; ++i) points.emplace_back(i, std::sin(i * 0.01));
  points[54321].second = 40;
  points[12345].second = -40;
  for (int i = 70000; i < 80000; ++i) points[size_t(i)].second = std::nan("");
  const auto kept = thinned(points, 600);
  EXPECT_LE(kept.size(), 1900u);
  EXPECT_EQ(kept.front(), points.front());
  EXPECT_EQ(kept.back(), points.back());
  const auto contains = [&](double x, double y) {
    return std::find(kept.begin(), kept.end(), std::pair<double, double>(x, y)) != kept.end();
  };
  EXPECT_TRUE(contains(54321, 40));
  EXPECT_TRUE(contains(12345, -40));
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; }));
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const auto& p) {
    return p.first > 70000 && p.first < 80000 && std::isnan(p.second);
  }));
  EXPECT_EQ(thinned({{1, 2}, {3, 4}}).size(), 2u);
}

}  // namespace
}  // namespace ashlar::report
