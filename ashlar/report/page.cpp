// Writes a page.  Foreign text (names, paths, reasons) is escaped, as HTML in elements and as JSON
// with "<" escaped in the block of data, so that none of it is markup.
#include "ashlar/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::report {
namespace {

constexpr size_t kMaxRows = 200;     // of a chart's table
constexpr size_t kMaxColours = 8;    // of series in a bar, "other" included
constexpr size_t kManyColumns = 24;  // of a heat map that takes the width of the page

std::string html(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// Six digits; whole numbers and large ones without an exponent.
std::string number(double value) {
  if (!std::isfinite(value)) return "";
  const bool whole = value == std::round(value) || std::abs(value) >= 1e5;
  return whole && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                         : fmt::format("{:.6g}", value);
}

// Text with commands between pairs of `.
std::string with_commands(std::string_view text) {
  std::string out;
  bool command = false;
  for (const char c : html(text)) {
    if (c != '`') {
      out += c;
      continue;
    }
    out += command ? "</code>" : "<code>";
    command = !command;
  }
  return command ? html(text) : out;
}

// A value in the block of data.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : "null";
}

std::string json_text(std::string_view text) {
  std::string out;
  for (const char c : one_line(Ordered(printable(text))))
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  return out;
}

template <typename Values, typename Body>
std::string json_list(const Values& values, Body body) {
  std::string out = "[";
  for (const auto& value : values) {
    if (out.size() > 1) out += ',';
    out += body(value);
  }
  return out + ']';
}

std::string json_of(const PageAxis& axis) {
  const char* ticks = axis.ticks == Ticks::kBytes      ? "bytes"
                      : axis.ticks == Ticks::kDoubling ? "doubling"
                                                       : "decimal";
  return fmt::format("{{\"label\":{},\"log\":{},\"ticks\":\"{}\"}}", json_text(axis.label),
                     axis.log, ticks);
}

std::string json_of(const std::vector<std::pair<double, double>>& pairs) {
  return json_list(pairs, [](const auto& pair) {
    return fmt::format("[{},{}]", json_number(pair.first), json_number(pair.second));
  });
}

std::string json_of(const Line& line) {
  std::string more;
  if (!line.range.empty()) more += ",\"range\":" + json_of(line.range);
  if (line.guide_of >= 0) more += fmt::format(",\"guide_of\":{}", line.guide_of);
  if (line.faint) more += ",\"faint\":true";
  if (line.scattered) more += ",\"scattered\":true";
  if (!line.spots.empty())
    more += ",\"spots\":" + json_list(line.spots, [](const Spot& spot) {
              return fmt::format("[{},{},{}]", json_number(spot.x), json_number(spot.y),
                                 json_text(spot.name));
            });
  return fmt::format("{{\"name\":{},\"markers\":{},\"points\":{}{}}}", json_text(line.name),
                     line.markers, json_of(line.points), more);
}

std::string json_of(const LineChart& chart) {
  std::string marks;
  if (!chart.marks.empty())
    marks = ",\"marks\":" + json_list(chart.marks, [](const PageMark& mark) {
              return fmt::format("[{},{}]", json_number(mark.x), json_text(mark.name));
            });
  return fmt::format("{{\"kind\":\"lines\",\"title\":{},\"x\":{},\"y\":{},\"lines\":{}{}}}",
                     json_text(chart.title), json_of(chart.x), json_of(chart.y),
                     json_list(chart.lines, [](const Line& line) { return json_of(line); }), marks);
}

std::string json_of(const HeatMap& map) {
  return fmt::format(
      "{{\"kind\":\"heat\",\"title\":{},\"x\":{},\"y\":{},\"unit\":{},\"columns\":{},\"rows\":{},"
      "\"values\":{}}}",
      json_text(map.title), json_text(map.x_label), json_text(map.y_label), json_text(map.unit),
      json_list(map.columns, json_text), json_list(map.rows, json_text),
      json_list(map.values, json_number));
}

// The chart with the largest series first, and the small ones as one.
BarChart for_eyes(BarChart chart) {
  const auto total = [](const auto& series) {
    double sum = 0;
    for (const double value : series.second)
      if (std::isfinite(value)) sum += value;
    return sum;
  };
  std::stable_sort(chart.series.begin(), chart.series.end(),
                   [&](const auto& a, const auto& b) { return total(a) > total(b); });
  if (chart.series.size() <= kMaxColours) return chart;
  std::vector<double> other(chart.categories.size(), 0);
  for (size_t s = kMaxColours - 1; s < chart.series.size(); ++s)
    for (size_t i = 0; i < other.size(); ++i)
      if (const double value = chart.series[s].second[i]; std::isfinite(value)) other[i] += value;
  chart.series.resize(kMaxColours - 1);
  chart.series.emplace_back("other", std::move(other));
  return chart;
}

std::string json_of(const BarChart& given) {
  const BarChart chart = for_eyes(given);
  return fmt::format(
      "{{\"kind\":\"bars\",\"title\":{},\"x\":{},\"unit\":{},\"categories\":{},\"series\":{}}}",
      json_text(chart.title), json_text(chart.x_label), json_text(chart.unit),
      json_list(chart.categories, json_text), json_list(chart.series, [](const auto& series) {
        return fmt::format("{{\"name\":{},\"values\":{}}}", json_text(series.first),
                           json_list(series.second, json_number));
      }));
}

std::string row_of(std::string_view cell, const std::vector<std::string>& cells) {
  constexpr size_t kLong = 48;  // longer text may take several lines
  std::string out = "<tr>";
  for (const std::string& text : cells)
    out += fmt::format("<{0}{2}>{1}</{0}>", cell, html(text),
                       text.size() > kLong ? " class=\"long\"" : "");
  return out + "</tr>\n";
}

// A table, of whose rows at most kMaxRows are written: evenly spaced ones, and the last.
std::string table_of(const PageTable& table) {
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead>" +
                    row_of("th", table.columns) + "</thead>\n<tbody>\n";
  const size_t step = (table.rows.size() + kMaxRows - 1) / kMaxRows;
  for (size_t i = 0; i < table.rows.size(); ++i)
    if (step <= 1 || i % step == 0 || i + 1 == table.rows.size())
      out += row_of("td", table.rows[i]);
  out += "</tbody></table></div>\n";
  if (step > 1)
    out += fmt::format("<p class=\"note\">Every {} of {} rows, and the last.</p>\n",
                       step == 2   ? "second"
                       : step == 3 ? "third"
                                   : fmt::format("{}th", step),
                       format_thousands(int64_t(table.rows.size())));
  return out;
}

// A row for every point, since many may have one x.
PageTable scattered_rows_of(const LineChart& chart) {
  PageTable table{"", {"", chart.x.label, chart.y.label}, {}, ""};
  for (const Line& line : chart.lines)
    for (const auto& [x, y] : line.points)
      if (line.guide_of < 0 && line.scattered && std::isfinite(y))
        table.rows.push_back({line.name, number(x), number(y)});
  return table;
}

// A row for every x that a line has; guides have none.
PageTable rows_of(const LineChart& chart) {
  if (std::any_of(chart.lines.begin(), chart.lines.end(),
                  [](const Line& line) { return line.scattered; }))
    return scattered_rows_of(chart);
  PageTable table{"", {chart.x.label}, {}, ""};
  std::map<double, std::vector<std::string>> rows;
  for (const Line& line : chart.lines) {
    if (line.guide_of >= 0) continue;
    const size_t column = table.columns.size(), width = line.range.empty() ? 1 : 3;
    table.columns.push_back(line.name);
    if (width == 3) table.columns.insert(table.columns.end(), {"from", "to"});
    for (size_t i = 0; i < line.points.size(); ++i) {
      const auto& [x, y] = line.points[i];
      if (!std::isfinite(y)) continue;
      auto& row = rows[x];
      row.resize(column + width);
      row[column] = number(y);
      if (width == 1) continue;
      row[column + 1] = number(line.range[i].first);
      row[column + 2] = number(line.range[i].second);
    }
  }
  for (auto& [x, cells] : rows) {
    cells.resize(table.columns.size());
    cells[0] = number(x);
    table.rows.push_back(std::move(cells));
  }
  return table;
}

PageTable rows_of(const HeatMap& map) {
  PageTable table{"", {map.y_label}, {}, ""};
  table.columns.insert(table.columns.end(), map.columns.begin(), map.columns.end());
  for (size_t r = 0; r < map.rows.size(); ++r) {
    std::vector<std::string> cells = {map.rows[r]};
    for (size_t c = 0; c < map.columns.size(); ++c)
      cells.push_back(number(map.values[r * map.columns.size() + c]));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

PageTable rows_of(const BarChart& chart) {
  PageTable table{"", {chart.x_label}, {}, ""};
  for (const auto& [name, values] : chart.series)
    table.columns.push_back(chart.unit.empty() ? name : fmt::format("{}, {}", name, chart.unit));
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    std::vector<std::string> cells = {chart.categories[i]};
    for (const auto& [name, values] : chart.series) cells.push_back(number(values[i]));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

// Collects the data of charts while the body is written.
struct Writer {
  std::vector<std::string> data;

  template <typename Chart>
  std::string figure(const Chart& chart, bool wide) {
    data.push_back(json_of(chart));
    return fmt::format(
               "<figure data-chart=\"{}\"{}><figcaption>{}</figcaption>\n<div "
               "class=\"plot\"></div>\n",
               data.size() - 1, wide ? " class=\"wide\"" : "", html(chart.title)) +
           note(chart.note) + "<details><summary>Rows</summary>\n" + table_of(rows_of(chart)) +
           "</details></figure>\n";
  }
  static std::string note(const std::string& text) {
    return text.empty() ? "" : fmt::format("<p class=\"note\">{}</p>\n", with_commands(text));
  }
  std::string operator()(const LineChart& chart) { return figure(chart, chart.wide); }
  std::string operator()(const HeatMap& map) {
    return figure(map, map.columns.size() > kManyColumns);
  }
  std::string operator()(const BarChart& chart) { return figure(chart, chart.series.size() > 1); }
  std::string operator()(const PageTable& table) {
    const std::string title =
        table.title.empty() ? "" : fmt::format("<h3>{}</h3>\n", html(table.title));
    return title + table_of(table) + note(table.note);
  }
};

// Charts that follow each other share a grid.
std::string items_of(const PageSection& section, Writer& writer) {
  std::string out;
  bool in_grid = false;
  for (const Item& item : section.items) {
    if (const bool chart = !std::holds_alternative<PageTable>(item); chart != in_grid) {
      out += chart ? "<div class=\"charts\">\n" : "</div>\n";
      in_grid = chart;
    }
    out += std::visit(writer, item);
  }
  return out + (in_grid ? "</div>\n" : "");
}

std::string_view mood_class(Mood mood) {
  switch (mood) {
    case Mood::kGood:
      return "good";
    case Mood::kWarning:
      return "warning";
    case Mood::kBad:
      return "bad";
    case Mood::kPlain:
      break;
  }
  return "plain";
}

std::string header_of(const Page& page) {
  constexpr size_t kLongFact = 32;
  std::string out = fmt::format("<header><h1>{}</h1>\n", html(page.title));
  if (!page.subtitle.empty()) out += fmt::format("<p>{}</p>\n", html(page.subtitle));
  if (!page.banner.empty())
    out += fmt::format("<p class=\"banner {}\" role=\"status\">{}</p>\n", mood_class(page.mood),
                       html(page.banner));
  if (page.sections.size() > 1) {
    out += "<nav aria-label=\"Sections\"><ul>\n";
    for (size_t i = 0; i < page.sections.size(); ++i)
      out += fmt::format("<li><a href=\"#section-{}\">{}</a></li>\n", i,
                         html(page.sections[i].heading));
    out += "</ul></nav>\n";
  }
  if (!page.facts.empty()) {
    out += "<dl>\n";
    for (const auto& [name, value] : page.facts)
      out +=
          fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n",
                      value.size() > kLongFact ? " class=\"long\"" : "", html(name), html(value));
    out += "</dl>\n";
  }
  return out + "</header>\n";
}

}  // namespace

std::string size_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

void tidy(std::initializer_list<std::string_view> common, PageTable& table) {
  std::string shared;
  for (size_t c = table.columns.size(); c-- > 0;) {
    const std::string name = table.columns[c];
    const bool same = std::all_of(table.rows.begin(), table.rows.end(),
                                  [&](const auto& row) { return row[c] == table.rows[0][c]; });
    const bool named = std::find(common.begin(), common.end(), name) != common.end();
    if (!same || table.rows.empty() || (!named && !table.rows[0][c].empty())) continue;
    if (!table.rows[0][c].empty())
      shared = fmt::format("{}: {}{}", name, table.rows[0][c], shared.empty() ? "" : "; " + shared);
    table.columns.erase(table.columns.begin() + long(c));
    for (auto& row : table.rows) row.erase(row.begin() + long(c));
  }
  if (!shared.empty())
    table.note =
        fmt::format("All rows: {}.{}{}", shared, table.note.empty() ? "" : " ", table.note);
}

void add_sections(std::vector<PageSection> sections, Page& page) {
  for (PageSection& section : sections)
    if (!section.items.empty()) page.sections.push_back(std::move(section));
}

std::string to_html(const Page& page) {
  bool any = false;
  for (const PageSection& section : page.sections) any = any || !section.items.empty();
  ASHLAR_REQUIRE(any, kConfig, "{}: there is nothing to report", printable(page.title));
  Writer writer;
  std::string body = header_of(page) + "<main>\n";
  for (size_t i = 0; i < page.sections.size(); ++i) {
    const PageSection& section = page.sections[i];
    body += fmt::format(
        "<section id=\"section-{0}\" aria-labelledby=\"heading-{0}\"><h2 "
        "id=\"heading-{0}\">{1}</h2>\n",
        i, html(section.heading));
    if (!section.text.empty()) body += fmt::format("<p>{}</p>\n", with_commands(section.text));
    body += items_of(section, writer);
    body += "</section>\n";
  }
  body += "</main>\n";
  const std::string data = json_list(writer.data, [](const std::string& chart) { return chart; });
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" "
      "content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n{}"
      "</style></head>\n<body>\n{}<noscript><p class=\"note\">Charts need JavaScript; every "
      "chart's "
      "rows are in the table under it.</p></noscript>\n<script type=\"application/json\" "
      "id=\"data\">{}</script>\n<!-- d3, copied into this file under this licence:\n{}-->\n<script>"
      "{}</script>\n<script>\n{}</script>\n</body></html>\n",
      html(page.title), asset_text("page"), body, data, asset_text("d3_txt"), asset_text("d3"),
      asset_text("charts"));
}

}  // namespace ashlar::report
