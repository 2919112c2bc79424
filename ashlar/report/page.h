// A report as a value: sections of charts, tables and facts; and the one HTML file that shows it.
//
// The file needs nothing else: d3, our chart code, the style and the data are inside, and it loads
// nothing from anywhere.  Charts are SVG, drawn in the browser from one block of JSON; the rows of
// every chart stand beside it in a table that also works without scripts.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ashlar::report {

// The places of ticks, and the numbers beside them.
enum class Ticks {
  kDecimal,
  kDoubling,  // powers of two: 512, 4096
  kBytes,     // powers of two with units: 512 B, 4 KiB
};
struct PageAxis {
  std::string label;  // with the unit
  bool log = false;
  Ticks ticks = Ticks::kDecimal;  // the others are for a logarithmic axis
};

// A point of a line that stands out, such as the size at which it is saturated.  Spots of one name
// share a symbol, which the legend explains.
struct Spot {
  std::string name;
  double x = 0, y = 0;
};

// Points in ascending order of x.  A y that is not finite is a gap.
struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool markers = false;  // a mark at every point
  // The least and the largest y to show around each point; empty: none.
  std::vector<std::pair<double, double>> range = {};
  // The law, the limit or the single values of the line with this number: drawn thin, in the
  // same colour, without an entry in the legend and without rows.  -1: a line of its own.
  int guide_of = -1;
  bool faint = false;      // behind another line that shows its trend
  bool scattered = false;  // marks that no line joins; points are in any order
  std::vector<Spot> spots = {};
};

// A value of x with a name: the size of a cache, the step of a resume.
struct PageMark {
  double x = 0;
  std::string name;
};
struct LineChart {
  std::string title;
  PageAxis x, y;
  std::vector<Line> lines;
  std::string note;                  // under the chart
  std::vector<PageMark> marks = {};  // vertical lines, where x reaches so far
  bool wide = false;                 // as wide as the page; others stand in pairs
};

// values[row * columns + column]; not finite: nothing was measured.
struct HeatMap {
  std::string title, x_label, y_label, unit;
  std::vector<std::string> columns, rows;
  std::vector<double> values;
  std::string note;
};

// One bar a category, made of the parts that series give it, the largest series first.  A chart has
// seven colours for series; what further ones add up to is drawn as "other".
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
  std::string heading, text;  // text between two ` is a command
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

// "4 MiB", "1.5 GiB": three digits at most, and no zeros behind the point.
std::string size_text(double bytes);

// Takes out columns without any text, and says in the note what all rows of the columns `common`
// share, if that is one thing.
void tidy(std::initializer_list<std::string_view> common, PageTable& table);

// Adds the sections that have items.
void add_sections(std::vector<PageSection> sections, Page& page);

// Errors   kConfig: a page without a chart and without a table.
std::string to_html(const Page& page);

// The ends, and the least and the largest value in each of `columns` equal ranges of x, which is
// all that a chart of that width can show.  Gaps stay.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points,
                                               size_t columns = 600);

// Files of ashlar/report/assets and d3, by name: "charts", "page", "d3", "d3_txt".
const char* asset_text(std::string_view name);

}  // namespace ashlar::report
