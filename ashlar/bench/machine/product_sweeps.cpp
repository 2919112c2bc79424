#include "ashlar/bench/machine/product_sweeps.h"

#include <algorithm>

#include "ashlar/bench/one_product.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::bench {
namespace {

ProductSpec forward(DType compute, int64_t G, int64_t T, int64_t N, int64_t K) {
  return {.compute = compute, .x = compute, .G = G, .T = T, .N = N, .K = K};
}

// One row: the rate of a product.  False if there is no time left.
bool product_row(const Rig& rig, RateTable& table, const std::string& subject, double at,
                 const ProductSpec& spec) {
  OneProduct product(rig.threads, spec);
  if (!table.row(subject, at, spec.flop(), [&] { product.run(); })) return false;
  table.note("", {{"groups", double(spec.G)},
                  {"rows", double(spec.T)},
                  {"cols", double(spec.N)},
                  {"depth", double(spec.K)},
                  {"gflop", spec.flop() / 1e9},
                  {"peak", table.ceiling()}});
  return true;
}

// The rate of calls back to back for so many seconds, of this rank.
double sustained_flops(double flop, double seconds, function_ref<void()> body) {
  const auto start = Clock::now();
  int64_t calls = 0;
  for (; calls == 0 || seconds_since(start) < seconds; ++calls) body();
  return flop * double(calls) / seconds_since(start);
}

// The median of the 5 fastest repeats, and the rate held over some seconds, of the largest shape.
void measure_ends(const Rig& rig, const ProductSpec& spec, double peak, Findings& findings) {
  const std::string key = spec.compute == DType::kBF16 ? "bf16" : "fp32";
  OneProduct product(rig.threads, spec);
  const auto body = [&] { product.run(); };
  std::vector<double> us = times_of(rig, body);
  std::sort(us.begin(), us.end());
  const Repeats achievable = repeats_of(of_ranks(rig.ranks, spec.flop() / us[2] * 1e-6));
  rig.ranks.barrier("sustained").wait();
  const Repeats sustained = repeats_of(
      of_ranks(rig.ranks, 1e-12 * sustained_flops(spec.flop(), rig.quick ? 0.3 : 2, body)));
  constexpr double kMost = 1.05;  // of the peak
  for (const auto& [name, rate] :
       {std::pair{"achievable", achievable}, std::pair{"sustained", sustained}})
    if (rate.median <= kMost * peak)
      findings.profile.set(fmt::format("compute.{}_{}", name, key),
                           rig.quantity(rate.median, "TFLOP/s", rate.spread()));
  findings.text += fmt::format(
      "{}: achievable {:.4g} TFLOP/s, sustained {:.4g}, peak of the registers {:.4g}, of a rank\n",
      name_of(spec.compute), achievable.median, sustained.median, peak);
}

}  // namespace

double peak_tflops(const Rig& rig, DType compute) {
  kernels::Context context;
  context.threads = &rig.threads;
  rig.ranks.barrier("peak").wait();
  const std::vector<double> peaks =
      of_ranks(rig.ranks, 1e-12 * kernels::measure_peak_flops(context, compute));
  return *std::max_element(peaks.begin(), peaks.end());
}

void limit_by_peak(const Rig& rig, DType compute, RateTable& table) {
  table.limit([&rig, compute] { return peak_tflops(rig, compute); }, "the peak of the registers");
}

double flop_to_90(std::span<const std::pair<double, double>> points) {
  double best = 0, work = 0;
  for (const auto& [gflop, rate] : points) best = std::max(best, rate);
  for (const auto& [gflop, rate] : points)
    if (rate >= 0.9 * best && (work == 0 || gflop < work)) work = gflop;
  return work;
}

void sweep_work(const Rig& rig, DType compute, Findings& findings) {
  const std::vector<int64_t> sizes = rig.quick
                                         ? std::vector<int64_t>{64, 256, 512}
                                         : std::vector<int64_t>{64, 128, 256, 512, 1024, 2048};
  RateTable table(rig, findings, "GFLOP", "TFLOP/s", 1e12);
  limit_by_peak(rig, compute, table);
  std::vector<std::pair<double, double>> rates;  // GFLOP, TFLOP/s
  for (const int64_t K : rig.quick ? std::vector<int64_t>{1024} : std::vector<int64_t>{1024, 7168})
    for (const int64_t size : sizes) {
      const ProductSpec spec = forward(compute, 1, size, size, K);
      const double gflop = spec.flop() / 1e9;
      if (!product_row(rig, table, fmt::format("product {} K {}", name_of(compute), K), gflop,
                       spec))
        return;
      if (table.last_is_stored()) rates.emplace_back(gflop, table.last().median);
      if (K != 1024 || size != sizes.back()) continue;
      table.add_fleet(machine::Subject::kProduct);
      measure_ends(rig, spec, table.ceiling(), findings);
    }
  if (rig.quick || compute != rig.products()) return;
  const double work = flop_to_90(rates);
  findings.profile.set("compute.flop_to_90", rig.quantity(work, "GFLOP", 0));
  findings.text +=
      fmt::format("{}: 90 % of the best rate from {:.4g} GFLOP on\n", name_of(compute), work);
}

void sweep_groups(const Rig& rig, DType compute, Findings& findings) {
  constexpr int64_t G = 8, N = 1024, K = 512;
  RateTable table(rig, findings, "tokens", "TFLOP/s", 1e12);
  limit_by_peak(rig, compute, table);
  const std::string shape = fmt::format("{} G {} N {} K {}", name_of(compute), G, N, K);
  machine::RateCurve efficiency{
      "grouped over dense " + shape, "tokens", "1", rig.threads.size(), rig.provenance(), {}};
  for (const int64_t tokens :
       rig.quick ? std::vector<int64_t>{16, 256} : std::vector<int64_t>{1, 4, 16, 64, 256, 1024}) {
    if (!product_row(rig, table, "grouped product " + shape, double(tokens),
                     forward(compute, G, G * tokens, N, K)))
      break;
    const double grouped = table.last_is_stored() ? table.last().median : 0;
    if (!product_row(rig, table, fmt::format("dense as grouped {}", shape), double(tokens),
                     forward(compute, 1, G * tokens, N, K)))
      break;
    const double dense = table.last_is_stored() ? table.last().median : 0;
    if (!(grouped > 0 && dense > 0)) continue;
    const double ratio = grouped / dense;
    efficiency.points.push_back({double(tokens), ratio, ratio, ratio});
    table.note(fmt::format("  grouped {:.2f} of it", ratio), {{"grouped_over_dense", ratio}});
  }
  if (!efficiency.points.empty()) findings.profile.set(std::move(efficiency));
}

void sweep_tiles(const Rig& rig, DType compute, Findings& findings) {
  constexpr int64_t kSize = 512;
  RateTable table(rig, findings, "size", "TFLOP/s", 1e12);
  limit_by_peak(rig, compute, table);
  const std::vector<int64_t> steps =
      rig.quick ? std::vector<int64_t>{-1, 0, 1}
                : std::vector<int64_t>{-64, -32, -16, -1, 0, 1, 16, 32, 64};
  for (const char* name : {"rows", "columns", "depth"})
    for (const int64_t step : steps) {
      ProductSpec spec = forward(compute, 1, kSize, kSize, kSize);
      (*name == 'r' ? spec.T : *name == 'c' ? spec.N : spec.K) += step;
      if (!product_row(rig, table,
                       fmt::format("product {} of {}, by {}", name_of(compute), kSize, name),
                       double(kSize + step), spec))
        return;
    }
}

void sweep_grid(const Rig& rig, DType compute, Findings& findings) {
  RateTable table(rig, findings, "rows", "TFLOP/s", 1e12);
  limit_by_peak(rig, compute, table);
  const std::vector<int64_t> sizes =
      rig.quick ? std::vector<int64_t>{64, 512} : std::vector<int64_t>{64, 256, 512, 1024, 2048};
  for (const int64_t K : rig.quick ? std::vector<int64_t>{1024} : std::vector<int64_t>{1024, 7168})
    for (const int64_t N : sizes)
      for (const int64_t M : sizes)
        if (!product_row(rig, table, fmt::format("product {} N {} K {}", name_of(compute), N, K),
                         double(M), forward(compute, 1, M, N, K)))
          return;
}

void sweep_products(const Rig& rig, Findings& findings) {
  const DType compute = rig.products();
  sweep_work(rig, DType::kF32, findings);
  if (compute != DType::kF32) sweep_work(rig, compute, findings);
  sweep_groups(rig, compute, findings);
  sweep_tiles(rig, compute, findings);
  sweep_grid(rig, compute, findings);
}

Findings measure_product_rates(const Rig& rig) {
  Findings findings;
  sweep_products(rig, findings);
  return findings;
}

}  // namespace ashlar::bench
