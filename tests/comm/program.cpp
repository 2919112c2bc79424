// One rank body under either engine, for mpi_launch.cpp and for measuring:
//   comm_program MODE [--ranks N] [--native]
//     --ranks    N threads of this process; without it, under mpirun
//     --native   MPI's own collectives
// Modes: operations, bits, near, overlap, pause, and the faults throw, late, stop, shape,
// lane, kill, alone, grace, and channel-throw, channel-late, channel-shape, channel-kill.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/comm/launch_check.h"
#include "ashlar/comm/mpi/run_mpi.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/channel_checks.h"
#include "tests/comm/lane_checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void operations(Group& world) {
  check_operations(world);
  check_many_in_flight(world);
  check_line(world);
  check_lanes(world);
  if (world.size() > 1) check_lanes_do_not_wait(world);
  check_channels(world);
  check_channels_do_not_wait(world);
  if (world.size() % 2 == 0) check_grid(world, 2);
  for (int size = 1; size < world.size(); ++size) {
    const auto group = world.split("some", [&](int rank) { return SplitKey{rank / size, -rank}; });
    check_operations(*group);
  }
  // Counters are the collectives' own; one sum tells that they are there.
  int64_t sent = 0;
  for (const TrafficRow& row : world.traffic()) sent += row.sent_bytes;
  if (world.rank() == 0)
    fmt::print("{} ranks: every operation is exact, {} bytes sent\n", world.size(), sent);
}

// Sums of data that rounds: against fp64, within the rounding of any order and of every step of it.
template <typename T>
void near_sums(Group& world, double epsilon) {
  const int n = world.size();
  const auto value = [](int rank, int64_t i) {
    return T(float(int64_t(hash(11, rank, i))) * 1e-19f);
  };
  for (const int64_t length : {1, 7, 1000, 100003}) {
    std::vector<T> in(static_cast<size_t>(length)), all(in.size()), root(in.size());
    for (int64_t i = 0; i < length; ++i) in[size_t(i)] = value(world.rank(), i);
    const Rows rows = even_rows(length, world.rank(), n);
    world.all_reduce(tensor_of(in), tensor_of(all), "near").wait();
    world.reduce(tensor_of(in), tensor_of(root), n - 1, "near").wait();
    world.reduce_scatter(tensor_of(in), tensor_of(in).slice(rows.begin, rows.end), "near").wait();
    const auto check = [&](const std::vector<T>& got, int64_t begin, int64_t end,
                           const char* what) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0, sizes = 0;
        for (int rank = 0; rank < n; ++rank) {
          sum += double(value(rank, i));
          sizes += std::abs(double(value(rank, i)));
        }
        require(std::abs(double(got[size_t(i)]) - sum) <= n * epsilon * sizes,
                fmt::format("{} of {}: element {} is {} but {} was expected", what,
                            name_of(dtype_of<T>), i, double(got[size_t(i)]), sum));
      }
    };
    check(all, 0, length, "all_reduce");
    check(in, rows.begin, rows.end, "reduce_scatter");
    if (world.rank() == n - 1) check(root, 0, length, "reduce");
  }
}

void near(Group& world) {
  near_sums<double>(world, 0x1p-53);
  near_sums<float>(world, 0x1p-24);
  near_sums<bf16>(world, 0x1p-8);
  world.barrier("end").wait();
  if (world.rank() == 0) fmt::print("{} ranks: sums are within rounding\n", world.size());
}

void bits(Group& world) {
  std::vector<int64_t> mine{int64_t(hash_of_sums(world))};
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather(tensor_of(mine), tensor_of(all), "bits").wait();
  if (world.rank() != 0) return;
  for (const int64_t hash : all) fmt::print("{:016x} ", uint64_t(hash));
  fmt::print("\n");
}

// Products of registers: time that depends on nothing else.
double compute(int64_t rounds) {
  double x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int64_t i = 0; i < rounds; ++i)
    for (double& value : x) value = value * 0.999999 + 1e-6;
  return x[0] + x[7];
}

double slowest(Group& world, double seconds) {
  std::vector<double> all(static_cast<size_t>(world.size()));
  std::vector<double> mine{seconds};
  world.all_gather(tensor_of(mine), tensor_of(all), "time").wait();
  return *std::max_element(all.begin(), all.end());
}

// The share of an all_reduce that hides under compute which lasts about as long: what both together
// take less than one after the other, over what the all_reduce takes alone.
void overlap(Group& world) {
  constexpr int kRounds = 7;
  std::vector<float> data(size_t{16} << 20);  // 64 MiB
  const Tensor whole = tensor_of(data);
  double sink = 0;
  const auto timed = [&](function_ref<void()> what) {
    world.barrier("together").wait();
    const auto start = Clock::now();
    what();
    return slowest(world, seconds_since(start));
  };
  const auto reduce = [&] { world.all_reduce(whole, whole, "overlap").wait(); };
  reduce();
  constexpr int64_t kProbe = 10'000'000;
  const double probe = timed([&] { sink += compute(kProbe); });
  const auto rounds = int64_t(timed(reduce) / probe * double(kProbe));
  std::vector<double> alone, computing, both, hidden;
  for (int i = 0; i < kRounds; ++i) {
    alone.push_back(timed(reduce));
    computing.push_back(timed([&] { sink += compute(rounds); }));
    both.push_back(timed([&] {
      Work work = world.all_reduce(whole, whole, "overlap");
      sink += compute(rounds);
      work.wait();
    }));
    hidden.push_back((alone.back() + computing.back() - both.back()) / alone.back());
  }
  const auto median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + kRounds / 2, values.end());
    return values[kRounds / 2];
  };
  if (world.rank() == 0)
    fmt::print(
        "all_reduce of 64 MiB on {} ranks, medians of {}: alone {:.1f} ms, compute {:.1f} ms, "
        "both {:.1f} ms, hidden {:.0f}% (from {:.0f}% to {:.0f}%){}\n",
        world.size(), kRounds, 1e3 * median(alone), 1e3 * median(computing), 1e3 * median(both),
        100 * median(hidden), 100 * *std::min_element(hidden.begin(), hidden.end()),
        100 * *std::max_element(hidden.begin(), hidden.end()), sink == 0 ? "!" : "");
}

// The last rank comes late to one of two sums, and nothing fails.
void pause(Group& world) {
  std::vector<float> data(1000);
  world.all_reduce(tensor_of(data), tensor_of(data), "good").wait();
  if (world.rank() + 1 == world.size()) std::this_thread::sleep_for(std::chrono::seconds(2));
  world.all_reduce(tensor_of(data), tensor_of(data), "grads").wait();
}

// Rank 2 fails, and every rank does something for a second more before it leaves.
void grace(Group& world) {
  try {
    if (world.rank() == 2) ASHLAR_FAIL(kNumeric, "loss is nan");
    world.barrier("grads").wait();
  } catch (const Error&) {
    world.fail(std::current_exception());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fmt::print("rank {} has done what it had to\n", world.rank());
    std::fflush(stdout);
    throw;
  }
}

// A fault on rank 2 (or the last), after work that is fine.
void fault(Group& world, std::string kind) {
  const bool channel = kind.starts_with("channel-");
  if (channel) kind.erase(0, kind.find('-') + 1);
  std::vector<float> data(1000);
  world.all_reduce(tensor_of(data), tensor_of(data), "good").wait();
  world.barrier("good").wait();
  if (world.rank() == std::min(2, world.size() - 1)) {
    if (kind == "throw") ASHLAR_FAIL(kNumeric, "loss is nan");
    if (kind == "late") std::this_thread::sleep_for(std::chrono::seconds(20));
    if (kind == "stop")
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        raise(SIGSTOP);
      }).detach();
    if (kind == "shape") data.resize(999);
    if (kind == "kill") raise(SIGKILL);
  }
  if (kind == "stop") {  // nearly always within messages
    data.resize(1 << 24);
    for (;;) world.all_reduce(tensor_of(data), tensor_of(data), "grads").wait();
  }
  if (channel) {
    std::vector<float> got(1000);
    Ring ring(world);
    Work sends = ring.to_next->send(tensor_of(data), "up");
    ring.from_previous->receive(tensor_of(got), "up").wait();
    sends.wait();
  }
  if (kind == "lane") {  // the failure is on a lane that nobody waits on
    const auto bulk = everybody(world, "bulk", "bulk");
    if (world.rank() == std::min(2, world.size() - 1)) data.resize(999);
    const Work fails = bulk->all_reduce(tensor_of(data), tensor_of(data), "bulk");
    const Transfer to{(world.rank() + 1) % world.size(), tensor_of(data)};
    world.send_receive({&to, 1}, {}, "nobody receives").wait();
  }
  world.all_reduce(tensor_of(data), tensor_of(data), "grads").wait();
  fmt::print("not reached\n");
}

void run_mode(Group& world, const std::string& mode) {
  if (mode == "operations") return operations(world);
  if (mode == "bits") return bits(world);
  if (mode == "near") return near(world);
  if (mode == "overlap") return overlap(world);
  if (mode == "pause") return pause(world);
  if (mode == "grace") return grace(world);
  fault(world, mode);
}

int run(const std::string& mode, int num_ranks, bool native) {
  const bool timed = mode == "overlap";
  // Slices even in `operations`; one message a chunk where time counts.
  Options options{mode.ends_with("late") || mode == "stop" ? 1.0 : 60.0,
                  timed ? int64_t{8} << 20 : 1 << 16,
                  native ? Collectives::kNative : Collectives::kExact};
  if (mode == "pause") {
    options.telling.after_s = 0.5;
    options.telling.line = [](std::string_view line) { fmt::print(stderr, "told: {}\n", line); };
  }
  Allocator allocator(Device::kCpu);
  const auto body = [&](Group& world) { run_mode(world, mode); };
  if (mode == "alone") {
    SelfWorld world(allocator);
    check_launch(world.group().size(), [](const char* name) { return std::getenv(name); });
  } else if (num_ranks > 0) {
    run_ranks(num_ranks, options, allocator, body);
  } else {
    run_mpi(options, allocator, body, [](std::string_view message, int) {
      fmt::print(stderr, "comm_program: {}\n", message);
    });
  }
  return 0;
}

}  // namespace
}  // namespace ashlar::comm

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool native = std::erase(words, "--native") > 0;
  const bool threads = words.size() == 3 && words[1] == "--ranks";
  if (words.size() != 1 && !threads) {
    std::fputs("comm_program MODE [--ranks N] [--native]\n", stderr);
    return 2;
  }
  try {
    return ashlar::comm::run(words[0], threads ? std::atoi(words[2].c_str()) : 0, native);
  } catch (const ashlar::Error& error) {
    fmt::print(stderr, "comm_program: {}\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "comm_program: internal error: {}\n", error.what());
    return 70;
  }
}
