// Compares two models by what `eval` wrote of each: the same questions, or windows of a text, in
// pairs.
//
//   difference  B minus A, the mean over pairs, of which windows count by their tokens; its
//               standard error is the deviation of the differences over the root of their number,
//               or that of a ratio of sums where they count differently, and the interval of 95 %
//               is 1.96 of it on either side
//   p           for metrics that are 0 or 1: how likely at least so uneven a split is of the pairs
//               that one alone has right, if neither model were better (sign test, two-sided)
//
// Errors  kData "FILE line N: ..."; kConfig if the files hold other questions, or fewer than 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/eval/judge.h"

namespace ashlar::eval {

// Lines of JSON: a header with model, task and results, then a row for each question.
std::string lines_of(const JudgedTask& judged_task, const std::string& model);

struct JudgedFile {
  std::string path, model, task;
  std::vector<JudgedRow> rows;
};
JudgedFile parse_judged(std::string_view lines, const std::string& path);

struct Comparison {
  std::string metric;
  double a = 0.0, b = 0.0;  // means
  double difference = 0.0, error = 0.0;
  double low() const { return difference - 1.959964 * error; }
  double high() const { return difference + 1.959964 * error; }
  bool counts = false;             // the metric is 0 or 1
  int64_t only_a = 0, only_b = 0;  // pairs that one alone has right
  double p = 1.0;
};

std::vector<Comparison> compare(const JudgedFile& a, const JudgedFile& b);

}  // namespace ashlar::eval
