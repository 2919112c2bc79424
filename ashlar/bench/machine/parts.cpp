#include <time.h>

#include <algorithm>
#include <cmath>

#include "ashlar/bench/machine/part.h"
#include "ashlar/comm/agree.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::bench {

std::span<const Part> parts() {
  static const Part kParts[] = {
      {"launch", "beginning a loop, and waking threads on idle and on busy cores", 1,
       measure_launch},
      {"stream", "memory bandwidth over the size of arrays, from caches to memory", 1,
       measure_stream},
      {"products", "matrix products over their work, all ranks at once", 1, measure_product_rates},
      {"layers", "attention over lengths, norms, AdamW, Newton-Schulz", 1, measure_layers},
      {"collectives", "collectives between ranks over message sizes, with nccl-tests' columns", 2,
       measure_collectives},
      {"p2p", "latency and bandwidth of every pair of ranks", 2, measure_p2p},
      {"storage", "the disk under a directory: reads and writes over sizes and ranks", 1,
       measure_storage},
  };
  return kParts;
}

DType Rig::products() const {
  const bool bf16 = comm::from_leader(ranks, kernels::bf16_is_faster(), "type") != 0;
  return bf16 ? DType::kBF16 : DType::kF32;
}

double us_since(Clock::time_point start) {
  return std::round(1e9 * seconds_since(start)) / 1e3;
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

std::vector<double> of_ranks(comm::Group& ranks, double value) {
  std::vector<double> all(size_t(ranks.size()));
  std::vector<double> mine{value};
  ranks.all_gather(tensor_over(std::span(mine)), tensor_over(std::span(all)), "values").wait();
  return all;
}

std::vector<double> slowest_of_ranks(comm::Group& ranks, std::vector<double> values) {
  std::vector<double> all(values.size() * size_t(ranks.size()));
  ranks.all_gather(tensor_over(std::span(values)), tensor_over(std::span(all)), "times").wait();
  for (size_t i = 0; i < all.size(); ++i) {
    double& value = values[i % values.size()];
    value = std::max(value, all[i]);
  }
  return values;
}

Repeats repeats_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[size_t(std::lround(share * double(values.size() - 1)))];
  };
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / double(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / double(values.size()));
  return {at(0.1), at(0.5), at(0.9), mean > 0 ? deviation / mean : 0};
}

}  // namespace ashlar::bench
