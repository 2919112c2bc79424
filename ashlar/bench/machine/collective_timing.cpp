#include "ashlar/bench/machine/collective_timing.h"

#include <algorithm>
#include <numeric>

#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"

namespace ashlar::bench {
namespace {

int64_t iterations_of(const CollectiveOptions& options, bool quick, int64_t bytes, double warm_s) {
  if (options.iterations > 0) return options.iterations;
  const double seconds = quick ? 0.02 : 0.2;
  const int64_t least = bytes < 65536 ? (quick ? 20 : 100) : (quick ? 5 : 20);
  const auto wanted = int64_t(seconds / std::max(warm_s, 1e-7));
  return std::clamp<int64_t>(wanted, least, quick ? 100 : 1000) + options.skip;
}

// The times of one rank's repeats, of one operation each.
struct OwnTimes {
  std::vector<double> us, cpu_us;
};

OwnTimes time_repeats(const CollectiveOptions& options, int64_t iterations, CollectiveCase& c) {
  OwnTimes own;
  const double share = 1.0 / double(options.aggregate);
  std::vector<comm::Work> works;
  works.reserve(size_t(options.aggregate));
  own.us.reserve(size_t(iterations));
  own.cpu_us.reserve(size_t(iterations));
  c.group().barrier("measured").wait();
  for (int64_t i = 0; i < iterations; ++i) {
    const auto begin = Clock::now();
    for (int64_t k = 0; k < options.aggregate; ++k) works.push_back(c.start());
    own.cpu_us.push_back(us_since(begin) * share);
    for (comm::Work& work : works) work.wait();
    own.us.push_back(us_since(begin) * share);
    works.clear();
  }
  for (std::vector<double>* times : {&own.us, &own.cpu_us})
    times->erase(times->begin(), times->begin() + long(options.skip));
  return own;
}

std::vector<double> gathered(comm::Group& group, std::vector<double>& values) {
  std::vector<double> all(values.size() * size_t(group.size()));
  group.all_gather(tensor_over(std::span(values)), tensor_over(std::span(all)), "times").wait();
  return all;
}

}  // namespace

std::vector<double> times_of_ranks(const std::vector<double>& by_rank, size_t num_ranks,
                                   OfRanks rule) {
  const size_t num_repeats = by_rank.size() / num_ranks;
  std::vector<double> times(by_rank.begin(), by_rank.begin() + long(num_repeats));
  if (rule == OfRanks::kFirst) return times;
  for (size_t rank = 1; rank < num_ranks; ++rank)
    for (size_t i = 0; i < num_repeats; ++i) {
      const double value = by_rank[rank * num_repeats + i];
      times[i] = rule == OfRanks::kAverage ? times[i] + value
                 : rule == OfRanks::kLeast ? std::min(times[i], value)
                                           : std::max(times[i], value);
    }
  if (rule == OfRanks::kAverage)
    for (double& time : times) time /= double(num_ranks);
  return times;
}

CollectiveTime time_case(const CollectiveOptions& options, bool quick, CollectiveCase& c) {
  CollectiveTime result;
  for (int64_t check = 0; check < options.checks; ++check) {
    c.fill(uint64_t(check) + 1);
    c.run();
    result.num_wrong += c.num_wrong(uint64_t(check) + 1);
  }
  c.fill(1);
  const auto start = Clock::now();
  for (int64_t i = 0; i < options.warm_up; ++i) c.run();
  const double warm_s = seconds_since(start) / double(std::max<int64_t>(options.warm_up, 1));
  const int64_t iterations =
      comm::from_leader(c.group(), iterations_of(options, quick, c.bytes(), warm_s), "iterations");
  ASHLAR_REQUIRE(options.skip < iterations, kConfig,
                 "--skip is {} but a row has {} iterations; expected fewer", options.skip,
                 iterations);
  OwnTimes own = time_repeats(options, iterations, c);
  const auto num_ranks = size_t(c.group().size());
  const std::vector<double> all = gathered(c.group(), own.us);
  result.times_us = times_of_ranks(all, num_ranks, options.of_ranks);
  result.us = repeats_of(result.times_us);
  result.slowest = repeats_of(times_of_ranks(all, num_ranks, OfRanks::kLargest));
  result.cpu_us =
      repeats_of(times_of_ranks(gathered(c.group(), own.cpu_us), num_ranks, options.of_ranks))
          .median;
  const auto num_repeats = long(own.us.size());
  for (auto first = all.begin(); first != all.end(); first += num_repeats)
    result.most_of_rank_us.push_back(*std::max_element(first, first + num_repeats));
  result.algbw = double(c.bytes()) / result.us.median * 1e-3;
  result.busbw = result.algbw * machine::bus_factor(c.op(), c.group().size());
  return result;
}

}  // namespace ashlar::bench
