// Whether a node is fit to train, in seconds: a few collectives with exact data, messages between
// all ranks, one product and one loop over memory on every rank.  Ranks are judged by their median,
// so a slow one is named without any earlier numbers.
#include "ashlar/bench/machine/collectives.h"
#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/product_case.h"

namespace ashlar::bench {
namespace {

void append_findings(Findings from, const Rig& rig, Findings& into) {
  into.text += from.text;
  into.num_left_out += from.num_left_out;
  for (auto& row : from.rows) into.rows.push_back(std::move(row));
  for (auto& fault : from.faults) into.faults.push_back(std::move(fault));
  for (auto& fleet : from.fleets) into.fleets.push_back(std::move(fleet));
  if (!rig.leads()) return;
  for (auto& curve : from.profile.collectives) into.profile.set(std::move(curve));
}

void smoke_product(const Rig& rig, Findings& findings) {
  constexpr int64_t kSize = 512, kDepth = 1024;
  const DType compute = rig.products();
  RateTable table(rig, findings, "GFLOP", "TFLOP/s", 1e12);
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
    options.max_bytes = 4 << 20;
    options.factor = 64;
    append_findings(findings_of(measure_collectives(rig, options), rig, options), rig, findings);
    Rig few = rig;
    few.quick = true;
    append_findings(measure_p2p(few), rig, findings);
  }
  smoke_product(rig, findings);
  smoke_memory(rig, findings);
  return findings;
}

}  // namespace ashlar::bench
