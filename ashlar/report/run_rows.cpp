// How it works.  A run of a million steps has half a gigabyte of rows.  Step rows are flat objects
// of numbers, true, false, null and plain text, which are read here without building a tree.  A key
// is compared first with the column that followed the last one, since rows have their keys in one
// order.  Anything else in a line (an event, a nested value, an escape) goes to the JSON parser.
// The rows with the loads of experts are long: a chart can show few, and only those are parsed.
#include "ashlar/report/run_rows.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ashlar::report {
namespace {

// Reads one flat object; false at anything that it does not know.
class RowReader {
 public:
  explicit RowReader(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool read(std::array<double, kStepColumns.size()>& values) {
    values.fill(std::nan(""));
    if (!take('{')) return false;
    size_t expected = 0;
    while (true) {
      std::string_view key;
      if (!text(key) || key == "event" || !take(':')) return false;
      double value = 0;
      if (!scalar(value)) return false;
      for (size_t tried = 0; tried < kStepColumns.size(); ++tried) {
        const size_t column = (expected + tried) % kStepColumns.size();
        if (kStepColumns[column] != key) continue;
        values[column] = value;
        expected = column + 1;
        break;
      }
      if (take(',')) continue;
      return take('}') && at_ == end_ && std::isfinite(values[size_t(StepColumn::kStep)]);
    }
  }

 private:
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool text(std::string_view& value) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"' && *at_ != '\\') ++at_;
    value = {begin, size_t(at_ - begin)};
    return take('"');
  }
  bool word(std::string_view expected) {
    if (std::string_view(at_, size_t(end_ - at_)).substr(0, expected.size()) != expected)
      return false;
    at_ += expected.size();
    return true;
  }
  // NaN for what is no number.
  bool scalar(double& value) {
    if (at_ == end_) return false;
    value = std::nan("");
    std::string_view ignored;
    if (*at_ == '"') return text(ignored);
    if (*at_ == 't') return word("true");
    if (*at_ == 'f') return word("false");
    if (*at_ == 'n') return word("null");
    const auto [end, error] = std::from_chars(at_, end_, value);
    if (error != std::errc()) return false;
    at_ = end;
    return true;
  }
  const char *at_, *end_;
};

void add_row(const std::array<double, kStepColumns.size()>& values, RunRows& rows) {
  // A start that repeats steps has cut off their rows; where it could not, the later row counts.
  auto& steps = rows.columns[size_t(StepColumn::kStep)];
  while (!steps.empty() && steps.back() >= values[size_t(StepColumn::kStep)])
    for (auto& column : rows.columns) column.pop_back();
  for (size_t i = 0; i < values.size(); ++i) rows.columns[i].push_back(values[i]);
}

void add_event(std::string_view line, RunRows& rows) {
  Json json = Json::parse(line, nullptr, false);
  if (json.is_object() && json.contains("event") && json["event"].is_string())
    rows.events.push_back(std::move(json));
  else
    ++rows.num_damaged;
}

// Evenly spaced ones, and the last.
void add_some(const std::vector<std::string_view>& lines, RunRows& rows) {
  constexpr size_t kMost = 480;
  const size_t step = (lines.size() + kMost - 1) / kMost;
  for (size_t i = 0; i < lines.size(); ++i)
    if (i % step == 0 || i + 1 == lines.size()) add_event(lines[i], rows);
}

}  // namespace

bool has_number(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number();
}

double number_of(const Json& event, const char* key) {
  return has_number(event, key) ? event[key].get<double>() : std::nan("");
}

std::string text_in(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_string() ? event[key].get<std::string>() : "?";
}

RunRows read_rows(std::string_view text) {
  RunRows rows;
  std::array<double, kStepColumns.size()> values;
  std::vector<std::string_view> loads;  // lines
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (RowReader(line).read(values)) {
      add_row(values, rows);
      continue;
    }
    if (line.starts_with(R"({"event":"expert_loads",)"))
      loads.push_back(line);
    else
      add_event(line, rows);
  }
  add_some(loads, rows);
  return rows;
}

}  // namespace ashlar::report
