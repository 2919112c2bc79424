// The table of layouts on ranks that are processes:
//   mpirun -n N parity_program [--fp32] [--every K] [PART...]
// Every case of N ranks whose name contains a PART (without one: every case of N ranks) against one
// rank: two steps in fp64, or with --fp32 the losses of 50 steps.  One line for each difference.
// --every K: one of K of these cases.  Every build tests one of 18, campaigns one of three; on
// threads they run all.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ashlar/comm/mpi/run_mpi.h"
#include "tests/train/parity.h"

namespace ashlar::train {
namespace {

struct Wanted {
  bool fp32 = false;
  int64_t every = 1;  // of so many cases one is run
  std::vector<std::string> parts;

  bool has(const ParityCase& c, int num_ranks) const {
    const auto within = [&](const std::string& part) {
      return c.name.find(part) != std::string::npos;
    };
    return c.num_ranks == num_ranks &&
           (parts.empty() || std::any_of(parts.begin(), parts.end(), within));
  }
};

std::string differences_of(const ParityCase& c, bool fp32, comm::Group& ranks) {
  if (!fp32) return check_parity(c, ranks);
  const double largest = largest_loss_difference(c, ranks);
  return largest <= kLossTolerance ? "" : fmt::format("losses differ by {:.3g}\n", largest);
}

void print_lines(const std::string& head, const std::string& lines) {
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    fmt::print("{}: {}\n", head, lines.substr(at, end - at));
    at = end + 1;
  }
}

int64_t sum(comm::Group& ranks, int64_t value) {
  const Tensor all{reinterpret_cast<std::byte*>(&value), DType::kI64, Device::kCpu, {1}};
  ranks.all_reduce(all, all, "failures").wait();
  return value;
}

// Cases that failed on any rank; the same on all.
int64_t run_cases(const Wanted& wanted, comm::Group& ranks) {
  int64_t num_wanted = 0, num_cases = 0, num_failures = 0;
  for (const ParityCase& c : parity_cases()) {
    if (!wanted.has(c, ranks.size()) || num_wanted++ % wanted.every != 0) continue;
    const std::string lines = differences_of(c, wanted.fp32, ranks);
    print_lines(fmt::format("{} on rank {}", c.name, ranks.rank()), lines);
    num_failures += sum(ranks, !lines.empty()) > 0;
    ++num_cases;
  }
  ASHLAR_REQUIRE(num_cases > 0, kConfig, "no case of {} ranks has such a name", ranks.size());
  if (ranks.rank() == 0)
    fmt::print("{} of {} cases on {} ranks equal one rank\n", num_cases - num_failures, num_cases,
               ranks.size());
  return num_failures;
}

int run(const Wanted& wanted) {
  Allocator allocator(Device::kCpu);
  int64_t num_failures = 0;
  comm::run_mpi(
      {}, allocator, [&](comm::Group& ranks) { num_failures = run_cases(wanted, ranks); },
      [](std::string_view message, int) { fmt::print(stderr, "parity_program: {}\n", message); });
  return num_failures > 0;
}

}  // namespace
}  // namespace ashlar::train

int main(int argc, char** argv) {
  ashlar::train::Wanted wanted;
  wanted.parts.assign(argv + 1, argv + argc);
  wanted.fp32 = std::erase(wanted.parts, "--fp32") > 0;
  const auto every = std::find(wanted.parts.begin(), wanted.parts.end(), "--every");
  if (every != wanted.parts.end()) {
    wanted.every = std::stoll(*(every + 1));
    wanted.parts.erase(every, every + 2);
  }
  return ashlar::train::run(wanted);
}
