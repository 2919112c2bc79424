// Tells in seconds whether a node is fit to train: by a few collectives with exact data, messages
// in rounds of pairs, and a product and a copy on every rank.  Ranks are judged by each other, so
// that a slow rank or a slow link is named without any earlier numbers.
#include "ashlar/bench/machine/collectives.h"
#include "ashlar/bench/machine/pair_times.h"
#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/product_case.h"
#include "ashlar/comm/agree.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

int rounds_of(const Rig& rig) {
  return rig.quick ? 5 : 10;
}

void append_findings(Findings from, const Rig& rig, Findings& into) {
  for (const auto& [end, row] : from.marks) into.marks.emplace_back(into.text.size() + end, row);
  into.text += from.text;
  into.num_left_out += from.num_left_out;
  for (auto& row : from.rows) into.rows.push_back(std::move(row));
  for (auto& fault : from.faults) into.faults.push_back(std::move(fault));
  for (auto& fleet : from.fleets) into.fleets.push_back(std::move(fleet));
  if (!rig.leads()) return;
  for (auto& curve : from.profile.collectives) into.profile.set(std::move(curve));
}

std::string pairs_text(const std::vector<PairTime>& times, const std::vector<std::string>& hosts) {
  std::string text = fmt::format("{:<34} {:>11} {:>9} {:>9} {:>9} {:<8}\n", "messages between", "B",
                                 "p10", "median", "p90", "unit");
  for (const PairTime& time : times) {
    const auto [a, b] = time.ranks;
    const Repeats us = repeats_of(time.one_way_us);
    text += fmt::format(
        "{:<34} {:>11} {:>9.4g} {:>9.4g} {:>9.4g} {:<8}\n",
        fmt::format("rank {} ({}) and rank {} ({})", a, hosts[size_t(a)], b, hosts[size_t(b)]),
        time.bytes, gigabytes_per_s(time, us.p90), gigabytes_per_s(time, us.median),
        gigabytes_per_s(time, us.p10), "GB/s");
  }
  return text;
}

// Every rank exchanges messages with a few others, each pair alone on its node.
void smoke_pairs(const Rig& rig, Findings& findings) {
  constexpr int64_t kBytes = 4 << 20;
  const std::vector<std::string> hosts = comm::all_said(rig.ranks, train::host_name(), "hosts");
  const std::vector<int> nodes = nodes_of(hosts);
  std::vector<PairTime> times;
  for (const PairRound& round : few_rounds_of_pairs(rig.ranks.size()))
    for (const PairRound& turn : turns_of(round, nodes)) {
      if (findings.num_left_out > 0 || !rig.goes_on()) {
        findings.num_left_out += int64_t(turn.size());
        continue;
      }
      for (PairTime& time : time_pairs(rig, turn, kBytes)) {
        time.row = rig.row();
        times.push_back(std::move(time));
      }
    }
  if (!rig.leads()) return;
  findings.text += pairs_text(times, hosts);
  std::vector<PairRate> rates;
  for (const PairTime& time : times) {
    // Medians: the fastest repeats of a rank that stands still now and then look healthy.
    rates.push_back({time.ranks, gigabytes_per_s(time)});
    findings.rows.push_back(pair_json(time));
    if (time.num_wrong > 0) findings.faults.push_back(fault_of(time));
  }
  if (findings.num_left_out == 0) findings.judged = judge_pairs(hosts, rates);
}

void smoke_product(const Rig& rig, Findings& findings) {
  constexpr int64_t kSize = 512, kDepth = 1024;
  const DType compute = rig.products();
  RateTable table(rig, findings, "GFLOP", "TFLOP/s", 1e12);
  table.look_again(rounds_of(rig));
  ProductCase c(rig.threads);
  const kernels::Operand w = c.operand(compute, {kSize, kDepth});
  const auto x = kernels::Matrix::of(c.random(compute, {kSize, kDepth})),
             y = kernels::Matrix::of(c.zeros(DType::kF32, {kSize, kSize}));
  const double flop = 2.0 * double(kSize * kSize * kDepth);
  if (table.row(fmt::format("product {} K {}", name_of(compute), kDepth), flop * 1e-9, flop,
                [&] { linear_forward(c.context(), compute, x, w, y); }))
    table.add_fleet(machine::Subject::kProduct);
}

void smoke_memory(const Rig& rig, Findings& findings) {
  constexpr int64_t kBytes = 64 << 20;
  RateTable table(rig, findings, "B", "GB/s", 1e9);
  table.look_again(rounds_of(rig));
  ProductCase c(rig.threads);
  const Tensor from = c.zeros(DType::kF32, {kBytes / 4}), to = c.zeros(DType::kF32, {kBytes / 4});
  if (table.row("memory copy", double(kBytes), 2.0 * double(kBytes),
                [&] { kernels::copy(c.context(), from, to); }))
    table.add_fleet(machine::Subject::kMemory);
}

}  // namespace

Findings measure_smoke(const Rig& rig) {
  Findings findings;
  if (rig.ranks.size() > 1) {
    using enum machine::CollectiveOp;
    CollectiveOptions options;
    options.ops = {kAllReduce, kAllGather, kReduceScatter};
    options.dtypes = {DType::kF32};
    options.min_bytes = 64 << 10;
    options.max_bytes = rig.quick ? 1 << 20 : 4 << 20;
    options.factor = rig.quick ? 16 : 64;
    options.iterations = rig.quick ? 10 : 0;
    append_findings(findings_of(measure_collectives(rig, options), rig, options), rig, findings);
    smoke_pairs(rig, findings);
  }
  smoke_product(rig, findings);
  smoke_memory(rig, findings);
  return findings;
}

}  // namespace ashlar::bench
