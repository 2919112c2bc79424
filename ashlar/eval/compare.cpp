#include "ashlar/eval/compare.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/fields.h"
#include "ashlar/core/lines.h"

namespace ashlar::eval {
namespace {

JudgedRow row_of(const Fields& fields) {
  JudgedRow row;
  row.key = fields.text("key");
  const Fields metrics = fields.object("metrics");
  for (const auto& [name, value] : fields.at("metrics").items())
    row.metrics[name] = metrics.number(name);
  for (const Json& value : fields.array("logprobs"))
    row.logprobs.push_back(value.is_number() ? value.get<double>() : std::nan(""));
  if (fields.has("tokens")) row.num_scored = fields.integer("tokens", 1, INT64_MAX);
  return row;
}

void check_alike(const JudgedFile& a, const JudgedFile& b) {
  ASHLAR_REQUIRE(a.task == b.task, kConfig,
                 "{} holds answers to {} and {} to {}; expected one task", a.path, a.task, b.path,
                 b.task);
  ASHLAR_REQUIRE(a.rows.size() == b.rows.size(), kConfig,
                 "{} holds {} answers and {} holds {}; expected the same questions", a.path,
                 a.rows.size(), b.path, b.rows.size());
  ASHLAR_REQUIRE(a.rows.size() >= 2, kConfig, "{} holds {} answer; expected at least 2", a.path,
                 a.rows.size());
  for (size_t i = 0; i < a.rows.size(); ++i)
    ASHLAR_REQUIRE(a.rows[i].key == b.rows[i].key, kConfig,
                   "question {} of {} is another than that of {}; expected the same questions in "
                   "the same order{}",
                   i + 1, a.path, b.path,
                   a.task == "text" ? ", and tokenizers that cut the text alike" : "");
}

// Twice the probability of at most `few` heads among `all` throws of a fair coin.
double sign_test(int64_t few, int64_t all) {
  double p = 0.0;
  for (int64_t k = 0; k <= few; ++k)
    p += std::exp(std::lgamma(double(all + 1)) - std::lgamma(double(k + 1)) -
                  std::lgamma(double(all - k + 1)) - double(all) * std::log(2.0));
  return std::min(1.0, 2 * p);
}

Comparison compare_metric(const JudgedFile& a, const JudgedFile& b, const std::string& metric) {
  Comparison found{.metric = metric, .counts = true};
  const auto count = double(a.rows.size());
  double all = 0.0;
  for (const JudgedRow& row : a.rows) all += double(row.num_scored);
  std::vector<double> differences;
  for (size_t i = 0; i < a.rows.size(); ++i) {
    const auto of_b = b.rows[i].metrics.find(metric);
    ASHLAR_REQUIRE(of_b != b.rows[i].metrics.end(), kConfig, "{}: row {} lacks the metric {}",
                   b.path, i + 1, metric);
    const double x = a.rows[i].metrics.at(metric), y = of_b->second;
    const double weight = double(a.rows[i].num_scored) / all;
    found.a += weight * x, found.b += weight * y;
    found.counts = found.counts && (x == 0 || x == 1) && (y == 0 || y == 1);
    found.only_a += x > y, found.only_b += y > x;
    differences.push_back(y - x);
    found.difference += weight * (y - x);
  }
  double squares = 0.0;
  for (size_t i = 0; i < differences.size(); ++i)
    squares +=
        std::pow(double(a.rows[i].num_scored) / all * (differences[i] - found.difference), 2);
  found.error = std::sqrt(squares * count / (count - 1));
  if (found.counts)
    found.p = sign_test(std::min(found.only_a, found.only_b), found.only_a + found.only_b);
  return found;
}

}  // namespace

std::string lines_of(const JudgedTask& judged_task, const std::string& model) {
  Ordered results = Ordered::object();
  for (const auto& [name, result] : judged_task.results) results[name] = result.value;
  std::string lines = one_line({{"model", model},
                                {"task", judged_task.task},
                                {"rows", judged_task.rows.size()},
                                {"results", results}}) +
                      "\n";
  for (const JudgedRow& row : judged_task.rows) {
    Ordered line{{"key", row.key}, {"metrics", row.metrics}, {"logprobs", row.logprobs}};
    if (judged_task.task == "text") line["tokens"] = row.num_scored;
    if (!row.text.empty()) line["text"] = row.text;
    lines += one_line(line) + "\n";
  }
  return lines;
}

JudgedFile parse_judged(std::string_view lines, const std::string& path) {
  JudgedFile file{.path = path, .model = {}, .task = {}, .rows = {}};
  for_each_line(lines, [&](std::string_view text, int64_t number) {
    const std::string place = fmt::format("{} line {}", path, number);
    const Json line = parse_json(text, place, ErrorKind::kData);
    const Fields fields(line, place, ErrorKind::kData);
    if (number == 1)
      file.model = fields.text("model"), file.task = fields.text("task");
    else
      file.rows.push_back(row_of(fields));
  });
  ASHLAR_REQUIRE(!file.rows.empty(), kData, "{}: it holds no rows; expected what eval --out wrote",
                 path);
  for (const JudgedRow& row : file.rows)
    for (const auto& [metric, value] : file.rows.front().metrics)
      ASHLAR_REQUIRE(row.metrics.contains(metric), kData, "{}: a row lacks the metric {}", path,
                     metric);
  return file;
}

std::vector<Comparison> compare(const JudgedFile& a, const JudgedFile& b) {
  check_alike(a, b);
  std::vector<Comparison> found;
  for (const auto& [metric, value] : a.rows.front().metrics)
    found.push_back(compare_metric(a, b, metric));
  return found;
}

}  // namespace ashlar::eval
