// Rates of products over their work: y = x W^T with K = 1,024 and 7,168 columns and as many rows of
// x as of W.  Ranks compute at once.
//
//   achievable   the median of the 5 fastest repeats of the largest shape
//   sustained    the rate held over some seconds, while all ranks are busy
#include <algorithm>

#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/product_case.h"

namespace ashlar::bench {
namespace {

// The tensors of one square of products.
class SquareProduct {
 public:
  SquareProduct(Threads& threads, DType compute, int64_t size, int64_t K)
      : case_(threads),
        compute_(compute),
        w_(case_.operand(compute, {size, K})),
        x_(kernels::Matrix::of(case_.random(compute, {size, K}))),
        y_(kernels::Matrix::of(case_.zeros(DType::kF32, {size, size}))) {}
  void run() { linear_forward(case_.context(), compute_, x_, w_, y_); }

 private:
  ProductCase case_;
  DType compute_;
  kernels::Operand w_;
  kernels::Matrix x_, y_;
};

// The rate of calls back to back for so many seconds, of this rank.
double sustained_flops(double flop, double seconds, function_ref<void()> body) {
  const auto start = Clock::now();
  int64_t calls = 0;
  for (; calls == 0 || seconds_since(start) < seconds; ++calls) body();
  return flop * double(calls) / seconds_since(start);
}

void measure_type(const Rig& rig, DType compute, Findings& findings) {
  const std::string type(name_of(compute));
  const std::string key = compute == DType::kBF16 ? "bf16" : "fp32";
  const std::vector<int64_t> sizes = rig.quick
                                         ? std::vector<int64_t>{64, 256, 512}
                                         : std::vector<int64_t>{64, 128, 256, 512, 1024, 2048};
  RateTable table(rig, findings, "GFLOP", "TFLOP/s", 1e12);
  std::vector<std::pair<double, double>> rates;  // GFLOP, TFLOP/s
  for (const int64_t K : rig.quick ? std::vector<int64_t>{1024} : std::vector<int64_t>{1024, 7168})
    for (const int64_t size : sizes) {
      const double flop = 2.0 * double(size * size * K);
      SquareProduct product(rig.threads, compute, size, K);
      if (!table.row(fmt::format("product {} K {}", type, K), flop * 1e-9, flop,
                     [&] { product.run(); }))
        return;
      rates.emplace_back(flop * 1e-9, table.last().median);
      if (K != 1024 || size != sizes.back()) continue;
      table.add_fleet(machine::Subject::kProduct);
      std::vector<double> us = times_of(rig, [&] { product.run(); });
      std::sort(us.begin(), us.end());
      const Repeats achievable = repeats_of(of_ranks(rig.ranks, flop / us[2] * 1e-6));
      rig.ranks.barrier("sustained").wait();
      const Repeats sustained = repeats_of(of_ranks(
          rig.ranks, 1e-12 * sustained_flops(flop, rig.quick ? 0.3 : 2, [&] { product.run(); })));
      findings.profile.set("compute.achievable_" + key,
                           rig.quantity(achievable.median, "TFLOP/s", achievable.spread()));
      findings.profile.set("compute.sustained_" + key,
                           rig.quantity(sustained.median, "TFLOP/s", sustained.spread()));
      findings.text += fmt::format("{}: achievable {:.4g} TFLOP/s, sustained {:.4g}, of a rank\n",
                                   type, achievable.median, sustained.median);
    }
  if (rig.quick) return;
  // The work from which on some shape reaches 90 % of the best rate.
  double best = 0, work = 1e300;
  for (const auto& [gflop, rate] : rates) best = std::max(best, rate);
  for (const auto& [gflop, rate] : rates)
    if (rate >= 0.9 * best) work = std::min(work, gflop);
  findings.profile.set("compute.flop_to_90", rig.quantity(work, "GFLOP", 0));
}

}  // namespace

Findings measure_product_rates(const Rig& rig) {
  Findings findings;
  measure_type(rig, DType::kF32, findings);
  if (rig.products() == DType::kBF16) measure_type(rig, DType::kBF16, findings);
  return findings;
}

}  // namespace ashlar::bench
