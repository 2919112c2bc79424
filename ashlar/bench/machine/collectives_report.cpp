// Tables and JSON rows of collectives, with the columns and keys of nccl-tests.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collectives.h"
#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"

namespace ashlar::bench {
namespace {

using machine::CollectiveOp;

// The names of nccl-tests.
std::string_view nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "double";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI32:
      return "int32";
    case DType::kU8:
      return "uint8";
    default:
      return "float";
  }
}

std::string_view redop_of(CollectiveOp op) {
  const bool sums = op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
                    op == CollectiveOp::kReduce;
  return sums ? "sum" : "none";
}

double shown_us(const CollectiveTime& time, const CollectiveOptions& options) {
  return options.cpu_time ? time.cpu_us : time.us.median;
}

std::string columns_of(const std::optional<CollectiveTime>& time,
                       const CollectiveOptions& options) {
  std::string text;
  if (!time) {
    text = fmt::format("{:>9} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A");
  } else {
    text =
        fmt::format("{:>9.2f} {:>7.2f} {:>7.2f} {:>6}", shown_us(*time, options), time->algbw,
                    time->busbw, options.checks > 0 ? fmt::format("{}", time->num_wrong) : "N/A");
  }
  if (!options.per_iteration) return text;
  if (!time) return text + fmt::format(" {:>9} {:>9} {:>9} {:>6}", "N/A", "N/A", "N/A", "N/A");
  const Summary s = summarize(time->times_us);
  return text + fmt::format(" {:>9.2f} {:>9.2f} {:>9.2f} {:>6.1f}", s.min, s.max, s.p99,
                            100 * time->us.cv);
}

Ordered time_json(const CollectiveTime& time, const CollectiveOptions& options) {
  return {{"time", shown_us(time, options)},
          {"alg_bw", time.algbw},
          {"bus_bw", time.busbw},
          {"nwrong", time.num_wrong}};
}

Ordered repeats_json(const CollectiveTime& time) {
  const Summary s = summarize(time.times_us);
  std::vector<double> sorted = time.times_us;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = size_t(std::ceil(0.95 * double(sorted.size()))) - 1;
  return {{"min_us", s.min},
          {"max_us", s.max},
          {"avg_us", s.mean},
          {"p50_us", s.median},
          {"p95_us", sorted[rank]},
          {"p99_us", s.p99},
          {"stdev_us", time.us.cv * s.mean},
          {"cv_pct", 100 * time.us.cv},
          {"times_us", time.times_us},
          {"per_process_max_times_us", time.most_of_rank_us}};
}

// The time over that of the first engine, where rows of several engines stand together.
double ratio_to_first(const CollectiveReport& report, size_t row,
                      const CollectiveOptions& options) {
  const size_t first = row - row % options.engines.size();
  return report.rows[row].best_known().us.median / report.rows[first].best_known().us.median;
}

std::string row_json(const CollectiveReport& report, size_t number,
                     const CollectiveOptions& options) {
  const CollectiveRow& row = report.rows[number];
  Ordered json{{"size", row.bytes},
               {"count", row.count},
               {"type", nccl_type(row.dtype)},
               {"redop", redop_of(row.op)},
               {"root", row.root}};
  const auto add = [&](const char* name, const std::optional<CollectiveTime>& time) {
    json[name] = time ? time_json(*time, options) : Ordered(nullptr);
    if (time && options.per_iteration) json[std::string(name) + "_per_iter"] = repeats_json(*time);
  };
  add("out_of_place", row.out_of_place);
  add("in_place", row.in_place);
  json["actual_iterations"] = row.best_known().times_us.size();
  json["experiment_name"] = machine::to_string(row.op);
  json["row"] = row.row;
  json["wrong"] = row.num_wrong();
  json["engine"] = row.engine;
  if (options.engines.size() > 1)
    json["time_over_first_engine"] = ratio_to_first(report, number, options);
  json["group_shape"] = options.shape.text();
  json["group_size"] = report.group_size;
  json["groups"] = report.num_groups;
  json["clock_source"] = "steady_clock";
  return one_line(json);
}

std::string_view rule_of(const CollectiveOptions& options) {
  switch (options.of_ranks) {
    case OfRanks::kFirst:
      return "rank 0's";
    case OfRanks::kAverage:
      return "the ranks' average";
    case OfRanks::kLeast:
      return "the fastest rank's";
    case OfRanks::kLargest:
      return "the slowest rank's";
  }
  return "";
}

std::string head_of(CollectiveOp op, const CollectiveReport& report,
                    const CollectiveOptions& options, const std::string& engines) {
  std::string text = fmt::format(
      "# {}: {} rank{} in each of {} group{} ({}), engine {}; time{}: median of {}\n",
      machine::to_string(op), report.group_size, report.group_size == 1 ? "" : "s",
      report.num_groups, report.num_groups == 1 ? "" : "s", options.shape.text(), engines,
      options.cpu_time ? " of the call without the wait" : "", rule_of(options));
  const std::vector<std::string_view> keys[] = {{"", "", "", "", ""},
                                                {"size", "count", "type", "redop", "root"},
                                                {"(B)", "(elements)", "", "", ""}};
  const std::vector<std::string_view> times[] = {
      {}, {"time", "algbw", "busbw", "#wrong"}, {"(us)", "(GB/s)", "(GB/s)", ""}};
  const std::vector<std::string_view> repeats[] = {
      {}, {"i_min", "i_max", "i_p99", "i_cv%"}, {"(us)", "(us)", "(us)", ""}};
  for (const size_t line : {0, 1, 2}) {
    text += fmt::format("#{:>11} {:>12} {:>9} {:>6} {:>5}", keys[line][0], keys[line][1],
                        keys[line][2], keys[line][3], keys[line][4]);
    for (const std::string_view form : {"out-of-place", "in-place"}) {
      if (line == 0) {
        text += fmt::format(" {:>{}}", form, options.per_iteration ? 69 : 32);
        continue;
      }
      const auto& t = times[line];
      text += fmt::format(" {:>9} {:>7} {:>7} {:>6}", t[0], t[1], t[2], t[3]);
      const auto& r = repeats[line];
      if (options.per_iteration)
        text += fmt::format(" {:>9} {:>9} {:>9} {:>6}", r[0], r[1], r[2], r[3]);
    }
    if (options.engines.size() > 1)
      text += line == 1 ? fmt::format(" {:<10} {:>5}", "engine", "ratio") : "";
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  return text;
}

// Over all rows with bytes and both forms; nothing if there is none.
std::optional<double> average_busbw(const CollectiveReport& report) {
  int64_t times = 0;
  double busbw = 0;
  for (const CollectiveRow& row : report.rows)
    for (const auto& time : {row.out_of_place, row.in_place})
      if (time && row.bytes > 0) busbw += time->busbw, ++times;
  return times > 0 ? std::optional(busbw / double(times)) : std::nullopt;
}

// As nccl-tests judges its NCCL_TESTS_MIN_BW: under 0.9 of it the command fails.
machine::Judgement judge_average(double average, double wanted) {
  machine::Judgement j;
  j.name = "average bus bandwidth";
  j.verdict = average >= 0.9 * wanted ? machine::Verdict::kGood : machine::Verdict::kBad;
  j.value = average;
  j.unit = "GB/s";
  j.ratio = average / wanted;
  j.expected = fmt::format("{:.4g} GB/s, --min-bw", wanted);
  if (j.verdict == machine::Verdict::kBad)
    j.hint = "less than 0.9 of --min-bw (or NCCL_TESTS_MIN_BW)";
  return j;
}

std::string text_of(const CollectiveReport& report, const CollectiveOptions& options) {
  std::string text, engines;
  for (size_t i = 0; i < std::min(options.engines.size(), report.rows.size()); ++i)
    engines += (i == 0 ? "" : ", ") + report.rows[i].engine;
  std::optional<CollectiveOp> op;
  int64_t wrong = 0;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const CollectiveRow& row = report.rows[i];
    if (op != row.op) text += head_of(row.op, report, options, engines);
    op = row.op;
    text += fmt::format(" {:>11} {:>12} {:>9} {:>6} {:>5} {} {}", row.bytes, row.count,
                        nccl_type(row.dtype), redop_of(row.op), row.root,
                        columns_of(row.out_of_place, options), columns_of(row.in_place, options));
    if (options.engines.size() > 1)
      text += fmt::format(" {:<10} {:>5.2f}", row.engine, ratio_to_first(report, i, options));
    text += "\n";
    wrong += row.num_wrong();
  }
  text += fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  const double average = average_busbw(report).value_or(0);
  text += fmt::format("# Avg bus bandwidth    : {:.4g}", average);
  if (options.min_busbw) text += average >= 0.9 * *options.min_busbw ? " OK" : " FAILED";
  return text + "\n";
}

// The curve of each engine, operation, type and root.
void add_curves(const CollectiveReport& report, const Rig& rig, const CollectiveOptions& options,
                machine::Profile& profile) {
  std::vector<machine::CollectiveCurve> curves;
  for (const CollectiveRow& row : report.rows) {
    const std::string dtype(name_of(row.dtype));
    auto curve = std::find_if(curves.begin(), curves.end(), [&](const auto& c) {
      return c.engine == row.engine && c.op == row.op && c.dtype == dtype;
    });
    if (curve == curves.end()) {
      machine::CollectiveCurve made;
      made.engine = row.engine;
      made.op = row.op;
      made.dtype = dtype;
      made.shape = options.shape.text();
      made.ranks = report.group_size;
      made.groups = report.num_groups;
      made.provenance = rig.provenance();
      if (!row.engine.ends_with("native")) {
        made.algorithm = "direct";
        made.staging_bytes = rig.staging_bytes;
      }
      curve = curves.insert(curves.end(), std::move(made));
    }
    const Repeats& us = row.best_known().slowest;
    // With every root in turn, the profile has the times of the first.
    if (curve->points.empty() || curve->points.back().size < double(row.bytes))
      curve->points.push_back({double(row.bytes), us.p10, us.median, us.p90});
  }
  for (machine::CollectiveCurve& curve : curves) profile.set(std::move(curve));
}

}  // namespace

Findings findings_of(const CollectiveReport& report, const Rig& rig,
                     const CollectiveOptions& options) {
  Findings findings;
  if (!rig.leads()) return findings;
  findings.num_left_out = report.num_left_out;
  findings.text = text_of(report, options);
  add_curves(report, rig, options, findings.profile);
  if (const auto average = average_busbw(report); average && options.min_busbw)
    findings.demand = judge_average(*average, *options.min_busbw);
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const CollectiveRow& row = report.rows[i];
    findings.rows.push_back(row_json(report, i, options));
    if (row.num_wrong() == 0) continue;
    machine::Measured wrong;
    wrong.name = fmt::format("{} {} of {} bytes on {} ranks", machine::to_string(row.op),
                             nccl_type(row.dtype), row.bytes, report.group_size);
    wrong.value = row.best_known().busbw;
    wrong.unit = "GB/s";
    wrong.num_wrong = row.num_wrong();
    findings.faults.push_back(std::move(wrong));
  }
  return findings;
}

}  // namespace ashlar::bench
