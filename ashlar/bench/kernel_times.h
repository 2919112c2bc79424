// The common parts of benchmarks of single kernels: the clock, and the machine of the times.
#pragma once

#include <string>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/context.h"

namespace ashlar::bench {

struct KernelTime {
  double flop = 0;
  double median_s = 0, min_s = 0;
  int64_t repeats = 0;
  double flops() const { return flop / median_s; }
};

// Calls the body until caches, clocks and threads are warm: twice at least, and for 20 ms.
void warm_up(function_ref<void()> body);

// Warms up, then repeats for `seconds`, and at least 5 times; wall clock over all threads.
KernelTime time_kernel(double flop, double seconds, function_ref<void()> body);

struct KernelMachine {
  std::string isa, compute;
  int threads = 0;
  double peak_flops = 0;  // sustained by registers, on all threads
  // "amx compute BF16 threads 2, peak 6600 GFLOP/s"
  std::string text() const;
};

// The machine before and after body(threads): the better peak of both, since threads that have just
// started may share a CPU for a while.
KernelMachine measure_beside_peak(int num_threads, DType compute,
                                  function_ref<void(Threads&)> body);

}  // namespace ashlar::bench
