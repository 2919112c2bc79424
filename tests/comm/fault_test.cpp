// Ranks that fail, come late, leave or disagree: named, in time, and nobody hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "ashlar/comm/launch_check.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;

constexpr int kRanks = 4, kTrials = 100;
constexpr double kDeadline = 0.2;

// How long this machine gave us no time at all: a thread that sleeps 2 ms at a time sees it.  A
// wait may last that much longer.
class Stalls {
 public:
  Stalls() : thread_([this] { watch(); }) {}
  ~Stalls() {
    stop_ = true;
    thread_.join();
  }
  double seconds() const { return double(stalled_us_) * 1e-6; }

 private:
  void watch() {
    using std::chrono::steady_clock;
    for (auto last = steady_clock::now(); !stop_;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const auto now = steady_clock::now();
      const auto gap = std::chrono::duration_cast<std::chrono::microseconds>(now - last).count();
      if (gap > 10'000) stalled_us_ += gap;
      last = now;
    }
  }
  std::atomic<int64_t> stalled_us_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Trial {
  std::string first;                                                  // what run_ranks rethrew
  std::string place;                                                  // behind it
  int exit_code = 0;                                                  // of it
  std::vector<std::string> heard = std::vector<std::string>(kRanks);  // by each waiting rank
  std::vector<double> seconds = std::vector<double>(kRanks);          // of its step, until it heard
  double timeout_s = 0, stalled_s = 0;
  double spread_s = 0;  // from the first rank that began its step to the last
};

void reduce_some(Group& world, int64_t length, const char* label) {
  std::vector<double> data(static_cast<size_t>(length));
  world.all_reduce(tensor_of(data), tensor_of(data), label).wait();
}

// Two good all_reduces, then `step` of each rank; the waits of others end in an error.
Trial try_once(const Options& options, function_ref<void(Group& world)> step) {
  using std::chrono::steady_clock;
  Trial trial;
  trial.timeout_s = options.timeout_s;
  Allocator allocator(Device::kCpu);
  Stalls stalls;
  std::vector<steady_clock::time_point> starts(kRanks, steady_clock::now());
  try {
    run_ranks(kRanks, options, allocator, [&](Group& world) {
      steady_clock::time_point& start = starts[size_t(world.rank())];
      try {
        reduce_some(world, 1000, "good");
        reduce_some(world, 1000, "good");
        start = steady_clock::now();
        step(world);
      } catch (const Error& error) {
        const auto rank = size_t(world.rank());
        trial.heard[rank] = error.what();
        trial.seconds[rank] = std::chrono::duration<double>(steady_clock::now() - start).count();
        throw;
      }
    });
  } catch (const Error& error) {
    const std::string what = error.what();
    const size_t place = what.rfind(" [rank ");
    trial.first = what.substr(0, place);
    if (place != std::string::npos) trial.place = what.substr(place + 1);
    trial.exit_code = error.exit_code();
  }
  trial.stalled_s = stalls.seconds();
  const auto [first, last] = std::minmax_element(starts.begin(), starts.end());
  trial.spread_s = std::chrono::duration<double>(*last - *first).count();
  return trial;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// On a loaded machine a good all_reduce may be late before `step`, or ranks begin their step one
// after another, so that more than one is late.  Such a trial has tried nothing; the next one gives
// them twice the time.
Trial run_trial(Options options, function_ref<void(Group& world)> step) {
  constexpr int kAttempts = 6;
  for (int attempt = 1;; ++attempt) {
    Trial trial = try_once(options, step);
    const bool began = !contains(trial.first, "'good'") && trial.spread_s < options.timeout_s / 4;
    if (began || attempt == kAttempts) return trial;
    options.timeout_s *= 2;
  }
}

TEST(Fault, ARankThatThrowsEndsAllAtOnce) {
  for (int t = 0; t < kTrials; ++t) {
    const int bad = t % kRanks;
    const Trial trial = run_trial(Options{60.0}, [&](Group& world) {
      if (world.rank() == bad) ASHLAR_FAIL(kNumeric, "loss is nan in trial {}", t);
      reduce_some(world, 1000, "grads");
    });
    const std::string reason = fmt::format("loss is nan in trial {}", t);
    EXPECT_EQ(trial.first, reason);
    EXPECT_EQ(trial.place, fmt::format("[rank {} of 4]", bad));
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kNumeric));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == bad) continue;
      EXPECT_EQ(trial.heard[size_t(rank)], fmt::format("rank {} failed: {}", bad, reason));
      EXPECT_LT(trial.seconds[size_t(rank)],
                2 * kDeadline + trial.stalled_s);  // far before its own deadline
    }
  }
}

constexpr const char* kLate = "all_reduce 'grads' (number 2 of group world): waited ";

// Whether it is a time-out of that all_reduce which names the rank among those that did not arrive.
bool tells_of_late_rank(const std::string& text, int rank) {
  const size_t begin = text.find("not arrived: rank");
  if (!contains(text, kLate) || begin == std::string::npos) return false;
  const std::string absent = text.substr(begin, text.find(';', begin) - begin);
  return contains(absent, std::to_string(rank));
}

// All ranks but the late one begin to wait at the same moment.  Several may reach the time-out
// before they hear of each other's: each of them then tells of its own, and run_ranks of one.
TEST(Fault, ALateRankIsNamedInTime) {
  int num_alone = 0;
  for (int t = 0; t < kTrials; ++t) {
    const int late = t % kRanks;
    std::atomic<int> num_heard{0};
    const Trial trial = run_trial(Options{kDeadline}, [&](Group& world) {
      // It comes when all others have given up, or after a minute if they do not.
      if (world.rank() == late) {
        num_heard = 0;  // of an attempt before
        for (int ms = 0; ms < 60'000 && num_heard < kRanks - 1; ++ms)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      try {
        reduce_some(world, 1000, "grads");
      } catch (const Error&) {
        ++num_heard;
        throw;
      }
    });
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kComm));
    EXPECT_TRUE(trial.first.starts_with(kLate)) << trial.first;
    num_alone += contains(trial.first, fmt::format("not arrived: rank {};", late));
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string& heard = trial.heard[size_t(rank)];
      EXPECT_TRUE(tells_of_late_rank(heard, late)) << heard;
      const bool own = rank != late && heard.starts_with(kLate);
      EXPECT_TRUE(own || contains(heard, trial.first))
          << heard << " but the world: " << trial.first;
      if (rank == late) continue;
      EXPECT_LT(trial.seconds[size_t(rank)], 2 * trial.timeout_s + trial.stalled_s);
    }
  }
  EXPECT_GE(num_alone, 90);  // a machine that stalls may make others late too
}

TEST(Fault, ARankWithAnotherShapeIsNamed) {
  for (int t = 0; t < kTrials; ++t) {
    const int odd = t % kRanks;
    const Trial trial = run_trial(Options{kDeadline}, [&](Group& world) {
      reduce_some(world, world.rank() == odd ? 999 : 1000, "grads");
    });
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kComm));
    const std::string claim = fmt::format(
        "rank {} calls all_reduce 'grads' (number 2 of group world) with 999 elements of F64", odd);
    EXPECT_TRUE(contains(trial.first, claim)) << trial.first;
    EXPECT_TRUE(contains(trial.first, "with 1000 elements of F64")) << trial.first;
    EXPECT_LT(*std::max_element(trial.seconds.begin(), trial.seconds.end()),
              2 * kDeadline + trial.stalled_s);
  }
}

TEST(Fault, ARankThatEndsEarlyIsNamed) {
  for (int t = 0; t < kTrials; ++t) {
    const int gone = t % kRanks;
    const Trial trial = run_trial(Options{60.0}, [&](Group& world) {
      if (world.rank() != gone) reduce_some(world, 1000, "grads");
    });
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kComm));
    EXPECT_TRUE(contains(trial.first, fmt::format("waits for rank {}, which has ended", gone)))
        << trial.first;
    EXPECT_LT(*std::max_element(trial.seconds.begin(), trial.seconds.end()),
              2 * kDeadline + trial.stalled_s);
  }
}

struct Difference {
  const char* name;
  std::function<void(Group&, bool odd)> step;
  const char* expected;  // part of the message
};

// The other fields that the headers compare; rank 1 is the odd one.
TEST(Fault, EveryDifferenceIsNamed) {
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(64));
  std::vector<std::vector<int32_t>> ints(kRanks, std::vector<int32_t>(64));
  const auto whole = [&](Group& g) { return tensor_of(buffers[size_t(g.rank())]); };
  const std::vector<Difference> differences = {
      {"op",
       [&](Group& g, bool odd) {
         if (odd)
           g.broadcast(whole(g), 0, "x").wait();
         else
           g.all_reduce(whole(g), whole(g), "x").wait();
       },
       "broadcast 'x'"},
      {"label",
       [&](Group& g, bool odd) {
         g.all_reduce(whole(g), whole(g), odd ? "dense" : "experts").wait();
       },
       "all_reduce 'dense'"},
      {"type",
       [&](Group& g, bool odd) {
         const Tensor data = odd ? tensor_of(ints[size_t(g.rank())]) : whole(g);
         g.all_reduce(data, data, "x").wait();
       },
       "64 elements of I32"},
      {"root", [&](Group& g, bool odd) { g.broadcast(whole(g), odd ? 2 : 0, "x").wait(); },
       "(root 2"},
      {"counts",
       [&](Group& g, bool odd) {
         const int64_t counts[] = {16, 16, 16, 16}, others[] = {15, 16, 17, 16};
         const int64_t begin = (odd ? 15 : 16 * g.rank());
         g.all_gather(whole(g).slice(begin, begin + 16), whole(g), "x", odd ? others : counts)
             .wait();
       },
       "do not call the same"},
      {"a message too few",
       [&](Group& g, bool odd) {
         const int next = (g.rank() + 1) % kRanks, previous = (g.rank() + 3) % kRanks;
         const Transfer to[] = {{next, whole(g).slice(0, 4)}, {next, whole(g).slice(4, 8)}};
         const Transfer from[] = {{previous, whole(g).slice(8, 12)},
                                  {previous, whole(g).slice(12, 16)}};
         g.send_receive(std::span(to).first(odd ? 1 : 2), from, "x").wait();
       },
       "sends 16 bytes in 1"},
      {"one operation behind",
       [&](Group& g, bool odd) {
         if (!odd) g.barrier("x").wait();
         g.barrier("x").wait();
       },
       "which has ended"},
  };
  for (const Difference& difference : differences) {
    const Trial trial =
        run_trial(Options{5.0}, [&](Group& world) { difference.step(world, world.rank() == 1); });
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kComm)) << difference.name;
    EXPECT_TRUE(contains(trial.first, difference.expected))
        << difference.name << ": " << trial.first;
    EXPECT_TRUE(contains(trial.first, "rank 1")) << difference.name << ": " << trial.first;
  }
}

// An exception leaves while operations are under way: their memory is let go first, at once.
TEST(Fault, LeavingWithWorkUnderWayIsQuickAndSafe) {
  for (int t = 0; t < kTrials; ++t) {
    const auto start = std::chrono::steady_clock::now();
    const Trial trial = run_trial(Options{60.0}, [&](Group& world) {
      std::vector<double> data(20000);
      std::vector<Work> works;
      for (int i = 0; i < 5; ++i)
        works.push_back(world.all_reduce(tensor_of(data), tensor_of(data), "late"));
      if (world.rank() == t % kRanks) ASHLAR_FAIL(kData, "bad sample {}", t);
      works.push_back(world.all_reduce(tensor_of(data), tensor_of(data), "never"));
      for (Work& work : works) work.wait();
    });
    EXPECT_EQ(trial.first, fmt::format("bad sample {}", t));
    EXPECT_EQ(trial.exit_code, int(ErrorKind::kData));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
}

TEST(Fault, AFailureThatNobodyWaitsForIsStillReported) {
  const Trial trial = run_trial(Options{kDeadline}, [&](Group& world) {
    std::vector<double> data(world.rank() == 2 ? 3 : 4);
    const Work dropped = world.all_reduce(tensor_of(data), tensor_of(data), "dropped");
  });
  EXPECT_TRUE(contains(trial.first, "'dropped'")) << trial.first;
}

TEST(LaunchCheck, RefusesAWorldSmallerThanAnnounced) {
  const auto check = [](int world_size, std::string name, const char* value) {
    check_launch(world_size, [&](const char* asked) { return asked == name ? value : nullptr; });
  };
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"}) {
    EXPECT_NO_THROW(check(1, name, "1"));
    EXPECT_NO_THROW(check(4, name, "4"));
    EXPECT_NO_THROW(check(1, name, "many"));
    for (const int size : {1, 3}) {
      try {
        check(size, name, "4");
        FAIL() << name;
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 64);
        EXPECT_TRUE(contains(error.what(), fmt::format("{} is 4, so a launcher started at least 4 "
                                                       "ranks, but this process sees a world of {}",
                                                       name, size)))
            << error.what();
      }
    }
  }
  EXPECT_NO_THROW(check(1, "PMIX_RANK", "0"));
  EXPECT_THROW(check(1, "PMIX_RANK", "1"), Error);
  EXPECT_NO_THROW(check(1, "UNRELATED", "9"));
}

// Two lines, by the lowest rank that waits: of one that stands still, and that it goes on.  Waits
// that come again and again are usual, and are told of only where they are much longer.
TEST(Fault, ARankThatStandsStillIsToldOfBeforeTheTimeOut) {
  for (const int standing : {0, 2}) {
    std::mutex mutex;
    std::vector<std::string> lines;
    // A machine that stalls may make others late too.
    const auto lines_of = [&](const std::string& part) {
      const std::lock_guard lock(mutex);
      std::vector<std::string> found;
      for (const std::string& line : lines)
        if (contains(line, part)) found.push_back(line);
      return found;
    };
    Options options{60.0};
    options.telling.after_s = 0.4;
    options.telling.line = [&](std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(line);
    };
    std::vector<double> waits{1.0};
    std::vector<size_t> expected{1}, counts;
    if (standing == 2) waits = {1.0, 1.1, 0.8, 3.0}, expected = {1, 2, 2, 3};
    Allocator allocator(Device::kCpu);
    run_ranks(kRanks, options, allocator, [&](Group& world) {
      for (const double seconds : waits) {
        reduce_some(world, 1000, "good");
        if (world.rank() == standing)
          std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        reduce_some(world, 1000, "grads");
        world.barrier("all").wait();
        if (world.rank() == 0) counts.push_back(lines_of("'grads'").size());
      }
    });
    EXPECT_EQ(counts, expected);
    const int waiting = standing == 0 ? 1 : 0;
    const std::string told = lines_of("'grads'").at(0);
    EXPECT_TRUE(told.starts_with(
        fmt::format("rank {} waits for rank {}: all_reduce 'grads' (number 1 of group world), ",
                    waiting, standing)))
        << told;
    EXPECT_TRUE(contains(told, " s; the run ends after 60 s")) << told;
    EXPECT_FALSE(
        lines_of(fmt::format("rank {} came after 1 s, and rank {} goes on", standing, waiting))
            .empty());
  }
}

// Threads that are told of nothing, and waits in which nobody's caller waits, say nothing.
TEST(Fault, WhatNobodyWaitsForIsNotToldOf) {
  std::atomic<int> lines = 0;
  Options options{60.0};
  options.telling.after_s = 0.1;
  options.telling.line = [&](std::string_view) { ++lines; };
  Allocator allocator(Device::kCpu);
  run_ranks(2, options, allocator, [&](Group& world) {
    std::vector<float> data(100);
    // Posted far ahead on one rank, and awaited when the other has come.
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Work work = world.all_reduce(tensor_of(data), tensor_of(data), "early");
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    work.wait();
  });
  EXPECT_EQ(lines, 0);
}

}  // namespace
}  // namespace ashlar::comm
