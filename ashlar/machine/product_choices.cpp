#include "ashlar/machine/product_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::machine {
namespace {

constexpr std::string_view kChoiceHead =
    "op\tdtype\tresult\tgroups\trows\tcols\tdepth\tthreads\ttask_rows\ttask_panels\torder\tcopies\t"
    "rule_us\tform_us";
constexpr size_t kChoiceColumns = 14;
constexpr size_t kMostChoices = 100'000;

// One line of the file.
class ChoiceLine {
 public:
  ChoiceLine(const std::string& text, const std::string& source, size_t number)
      : cells_(split(text, '\t')), source_(source), number_(number) {
    if (cells_.size() != kChoiceColumns)
      fail("has {} columns; expected {}", cells_.size(), kChoiceColumns);
  }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    ASHLAR_FAIL(kConfig, "{}: line {} {}", source_, number_,
                fmt::format(format, std::forward<Args>(args)...));
  }
  const std::string& text(size_t column) const { return cells_[column]; }
  const std::string& word(size_t column, std::initializer_list<std::string_view> known) const {
    if (std::find(known.begin(), known.end(), cells_[column]) == known.end())
      fail("has '{}' in column {}; expected {}", printable(cells_[column]), column + 1,
           fmt::join(known, ", "));
    return cells_[column];
  }
  int64_t integer(size_t column, int64_t least) const {
    constexpr int64_t kMost = int64_t{1} << 31;
    const int64_t value = number<int64_t>(column);
    if (value < least || value >= kMost)
      fail("has {} in column {}; expected {} to {}", value, column + 1, least, kMost - 1);
    return value;
  }
  double microseconds(size_t column) const {
    const auto value = number<double>(column);
    if (!(value > 0 && value < 1e12))
      fail("has {} in column {}; expected a time", value, column + 1);
    return value;
  }

 private:
  template <typename T>
  T number(size_t column) const {
    const std::string& cell = cells_[column];
    T value{};
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size())
      fail("has '{}' in column {}; expected a number", printable(cell), column + 1);
    return value;
  }
  std::vector<std::string> cells_;
  const std::string& source_;
  size_t number_;
};

ProductChoice choice_of(const ChoiceLine& line) {
  ProductChoice c;
  c.op = line.text(0);
  c.dtype = line.word(1, {"F32", "BF16"});
  c.result = line.word(2, {"F32", "BF16"});
  c.groups = line.integer(3, 1);
  c.rows = line.integer(4, 1);
  c.cols = line.integer(5, 1);
  c.depth = line.integer(6, 1);
  c.threads = line.integer(7, 1);
  c.task_rows = line.integer(8, 0);
  c.task_panels = line.integer(9, 0);
  c.order = line.word(10, {"rule", "rows-first", "panels-first"});
  c.copies = line.word(11, {"rule", "always", "never"});
  c.rule_us = line.microseconds(12);
  c.form_us = line.microseconds(13);
  return c;
}

auto product_key(const ProductChoice& c) {
  return std::tie(c.op, c.dtype, c.result, c.groups, c.rows, c.cols, c.depth, c.threads);
}

}  // namespace

bool ProductChoice::same_product(const ProductChoice& other) const {
  return product_key(*this) == product_key(other);
}

std::string to_tsv(std::span<const ProductChoice> choices) {
  std::string text = fmt::format("{}\n", kChoiceHead);
  for (const ProductChoice& c : choices)
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.3f}\t{:.3f}\n", c.op,
                        c.dtype, c.result, c.groups, c.rows, c.cols, c.depth, c.threads,
                        c.task_rows, c.task_panels, c.order, c.copies, c.rule_us, c.form_us);
  return text;
}

std::vector<ProductChoice> parse_product_choices(const std::string& text,
                                                 const std::string& source) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  ASHLAR_REQUIRE(!lines.empty() && lines[0] == kChoiceHead, kConfig,
                 "{}: the first line does not name the columns of a table of products; measure it "
                 "again: ashlar bench products RECIPE --tune --profile FILE",
                 source);
  ASHLAR_REQUIRE(lines.size() <= kMostChoices, kConfig,
                 "{}: {} lines; a table of products has at most {}", source, lines.size(),
                 kMostChoices);
  std::vector<ProductChoice> choices;
  for (size_t i = 1; i < lines.size(); ++i)
    choices.push_back(choice_of(ChoiceLine(lines[i], source, i + 1)));
  std::vector<const ProductChoice*> sorted;
  for (const ProductChoice& choice : choices) sorted.push_back(&choice);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return product_key(*a) < product_key(*b); });
  for (size_t i = 1; i < sorted.size(); ++i)
    ASHLAR_REQUIRE(!sorted[i]->same_product(*sorted[i - 1]), kConfig,
                   "{}: {} of {} rows is there twice", source, printable(sorted[i]->op),
                   sorted[i]->rows);
  return choices;
}

}  // namespace ashlar::machine
