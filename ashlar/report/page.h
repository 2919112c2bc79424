// A report as a value: sections of charts, tables and facts; and the one HTML file that shows it.
//
// The file needs nothing else: d3, our chart code, the style and the data are inside, and it loads
// nothing from anywhere.  Charts are SVG, drawn in the browser from one block of JSON; the rows of
// every chart stand beside it in a table that also works without scripts.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ashlar::report {

struct PageAxis {
  std::string label;
  bool log = false;
};

// Points in ascending order of x.  A y that is not finite is a gap.
struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool markers = false;  // a mark at every point
};
struct LineChart {
  std::string title;
  PageAxis x, y;
  std::vector<Line> lines;
  std::string note;  // under the chart
};

// values[row * columns + column]; not finite: nothing was measured.
struct HeatMap {
  std::string title, x_label, y_label, unit;
  std::vector<std::string> columns, rows;
  std::vector<double> values;
  std::string note;
};

// One bar a category, made of the parts that series give it.
struct BarChart {
  std::string title, x_label, unit;
  std::vector<std::string> categories;
  std::vector<std::pair<std::string, std::vector<double>>> series;
  std::string note;
};

struct PageTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string note;
};

using Item = std::variant<LineChart, HeatMap, BarChart, PageTable>;

struct PageSection {
  std::string heading, text;
  std::vector<Item> items;
};

enum class Mood { kPlain, kGood, kWarning, kBad };

struct Page {
  std::string title, subtitle;
  std::string banner;  // one sentence on top; "": none
  Mood mood = Mood::kPlain;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<PageSection> sections;
};

// Errors   kConfig: a page without a chart and without a table.
std::string to_html(const Page& page);

// The ends, and the least and the largest value in each of `columns` equal ranges of x, which is
// all that a chart of that width can show.  Gaps stay.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points,
                                               size_t columns = 600);

// Files of ashlar/report/assets and d3, by name: "charts", "page", "d3", "d3_txt".
const char* asset_text(std::string_view name);

}  // namespace ashlar::report
