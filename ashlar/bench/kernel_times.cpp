#include "ashlar/bench/kernel_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/clock.h"
#include "ashlar/core/statistics.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::bench {

void warm_up(function_ref<void()> body) {
  constexpr int kLeast = 2;
  constexpr double kSeconds = 0.02;
  const auto start = Clock::now();
  for (int call = 0; call < kLeast || seconds_since(start) < kSeconds; ++call) body();
}

KernelTime time_kernel(double flop, double seconds, function_ref<void()> body) {
  constexpr size_t kMinRepeats = 5;
  warm_up(body);
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < kMinRepeats || seconds_since(start) < seconds) {
    const auto begin = Clock::now();
    body();
    times.push_back(seconds_since(begin));
  }
  const Summary summary = summarize(times);
  return {flop, summary.median, summary.min, int64_t(times.size())};
}

std::string KernelMachine::text() const {
  return fmt::format("{} compute {} threads {}, peak {:.0f} GFLOP/s", isa, compute, threads,
                     peak_flops * 1e-9);
}

KernelMachine measure_beside_peak(int num_threads, DType compute,
                                  function_ref<void(Threads&)> body) {
  Threads threads(num_threads);
  kernels::Context context;
  context.threads = &threads;
  const double before = kernels::measure_peak_flops(context, compute);
  body(threads);
  const double after = kernels::measure_peak_flops(context, compute);
  return {std::string(name_of(kernels::isa())), std::string(name_of(compute)), threads.size(),
          std::max(before, after)};
}

}  // namespace ashlar::bench
