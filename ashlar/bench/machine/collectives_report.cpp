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

std::string columns_of(const std::optional<CollectiveTime>& time, bool checked) {
  if (!time) return fmt::format("{:>9} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A");
  return fmt::format("{:>9.2f} {:>7.2f} {:>7.2f} {:>6}", time->us.median, time->algbw, time->busbw,
                     checked ? fmt::format("{}", time->num_wrong) : "N/A");
}

Ordered time_json(const CollectiveTime& time) {
  return {{"time", time.us.median},
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
          {"times_us", time.times_us}};
}

std::string row_json(const CollectiveRow& row, const CollectiveReport& report,
                     const CollectiveOptions& options) {
  Ordered json{{"size", row.bytes},
               {"count", row.count},
               {"type", nccl_type(row.dtype)},
               {"redop", redop_of(row.op)},
               {"root", row.root}};
  const auto add = [&](const char* name, const std::optional<CollectiveTime>& time) {
    json[name] = time ? time_json(*time) : Ordered(nullptr);
    if (time) json[std::string(name) + "_per_iter"] = repeats_json(*time);
  };
  add("out_of_place", row.out_of_place);
  add("in_place", row.in_place);
  json["actual_iterations"] = row.best_known().times_us.size();
  json["experiment_name"] = machine::to_string(row.op);
  json["wrong"] = row.num_wrong();
  json["group_shape"] = options.shape.text();
  json["group_size"] = report.group_size;
  json["groups"] = report.num_groups;
  json["clock_source"] = "steady_clock";
  return one_line(json);
}

std::string head_of(CollectiveOp op, const CollectiveReport& report,
                    const CollectiveOptions& options, const std::string& engine) {
  return fmt::format(
      "# {}: {} rank{} in each of {} group{} ({}), engine {}; time: median of the slowest rank's\n"
      "#{:>11} {:>12} {:>9} {:>6} {:>5} {:>32} {:>32}\n"
      "#{:>11} {:>12} {:>9} {:>6} {:>5} {:>9} {:>7} {:>7} {:>6} {:>9} {:>7} {:>7} {:>6}\n"
      "#{:>11} {:>12} {:>9} {:>6} {:>5} {:>9} {:>7} {:>7} {:>6} {:>9} {:>7} {:>7}\n",
      machine::to_string(op), report.group_size, report.group_size == 1 ? "" : "s",
      report.num_groups, report.num_groups == 1 ? "" : "s", options.shape.text(), engine, "", "",
      "", "", "", "out-of-place", "in-place", "size", "count", "type", "redop", "root", "time",
      "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "",
      "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

std::string text_of(const CollectiveReport& report, const CollectiveOptions& options,
                    const std::string& engine) {
  std::string text;
  std::optional<CollectiveOp> op;
  int64_t wrong = 0, times = 0;
  double busbw = 0;
  for (const CollectiveRow& row : report.rows) {
    if (op != row.op) text += head_of(row.op, report, options, engine);
    op = row.op;
    text += fmt::format(" {:>11} {:>12} {:>9} {:>6} {:>5} {} {}\n", row.bytes, row.count,
                        nccl_type(row.dtype), redop_of(row.op), row.root,
                        columns_of(row.out_of_place, options.checks > 0),
                        columns_of(row.in_place, options.checks > 0));
    wrong += row.num_wrong();
    for (const auto& time : {row.out_of_place, row.in_place})
      if (time && row.bytes > 0) busbw += time->busbw, ++times;
  }
  text += fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  text += fmt::format("# Avg bus bandwidth    : {:.4g}\n", times > 0 ? busbw / double(times) : 0.0);
  return text;
}

// The curve of each operation and type.
void add_curves(const CollectiveReport& report, const Rig& rig, const CollectiveOptions& options,
                machine::Profile& profile) {
  std::vector<machine::CollectiveCurve> curves;
  for (const CollectiveRow& row : report.rows) {
    const std::string dtype(name_of(row.dtype));
    if (curves.empty() || curves.back().op != row.op || curves.back().dtype != dtype) {
      machine::CollectiveCurve& curve = curves.emplace_back();
      curve.engine = rig.engine;
      curve.op = row.op;
      curve.dtype = dtype;
      curve.shape = options.shape.text();
      curve.ranks = report.group_size;
      curve.groups = report.num_groups;
      curve.provenance = rig.provenance();
      if (!rig.engine.ends_with("native")) {
        curve.algorithm = "direct";
        curve.staging_bytes = rig.staging_bytes;
      }
    }
    const Repeats& us = row.best_known().us;
    curves.back().points.push_back({double(row.bytes), us.p10, us.median, us.p90});
  }
  for (machine::CollectiveCurve& curve : curves) profile.set(std::move(curve));
}

}  // namespace

Findings findings_of(const CollectiveReport& report, const Rig& rig,
                     const CollectiveOptions& options) {
  Findings findings;
  if (!rig.leads()) return findings;
  findings.num_left_out = report.num_left_out;
  findings.text = text_of(report, options, rig.engine);
  add_curves(report, rig, options, findings.profile);
  for (const CollectiveRow& row : report.rows) {
    findings.rows.push_back(row_json(row, report, options));
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
