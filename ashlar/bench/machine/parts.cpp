#include <algorithm>
#include <cmath>

#include "ashlar/bench/machine/part.h"

namespace ashlar::bench {

std::span<const Part> parts() {
  static const Part kParts[] = {
      {"collectives", "collectives between ranks over message sizes, with nccl-tests' columns", 2,
       measure_collectives},
      {"p2p", "latency and bandwidth of every pair of ranks", 2, measure_p2p},
  };
  return kParts;
}

double us_since(Clock::time_point start) {
  return std::round(1e9 * seconds_since(start)) / 1e3;
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
