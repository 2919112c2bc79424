// The parts that measure memory, layers and launches: loops of every instruction set, NUMA nodes,
// thread counts, floors, and the choice of rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/bench/machine/numa_nodes.h"
#include "ashlar/bench/machine/part.h"
#include "ashlar/bench/machine/stream_loops.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"
#include "ashlar/kernels/isa.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::bench {
namespace {

// Runs a part alone on one rank.
Findings run_part(Findings (*measure)(const Rig&), const std::string& only, int num_threads = 1) {
  Findings findings;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(1, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(num_threads);
    Rig rig{ranks, allocator, threads, "self", "ashlar bench", "2026-01-31"};
    rig.quick = true;
    rig.only = only;
    findings = measure(rig);
  });
  return findings;
}

std::vector<Json> rows_of(const Findings& findings) {
  std::vector<Json> rows;
  for (const std::string& row : findings.rows) rows.push_back(Json::parse(row));
  return rows;
}

TEST(StreamLoops, EveryInstructionSetAndStreamingStoresGiveTheSame) {
  constexpr int64_t kSize = 1003;  // a rest for every width
  alignas(64) static double a[kSize], b[kSize], c[kSize];
  const kernels::Isa before = kernels::isa();
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const bool streaming : {false, true}) {
      for (int64_t i = 0; i < kSize; ++i) a[i] = 0.1 + double(i), b[i] = 0.2, c[i] = 0;
      const auto run = [&](StreamLoop loop) {
        return run_stream(loop, streaming, {a, b, c}, 2, kSize - 1);
      };
      run(StreamLoop::kCopy);
      EXPECT_EQ(c[500], a[500]);
      EXPECT_EQ(c[1], 0);  // before the part
      EXPECT_EQ(c[kSize - 1], 0);
      run(StreamLoop::kMul);
      run(StreamLoop::kAdd);
      run(StreamLoop::kTriad);
      double sum = 0;
      for (int64_t i = 2; i < kSize - 1; ++i) {
        const double first = 0.1 + double(i), second = kStreamScale * first;
        const double third = first + second, triad = second + kStreamScale * third;
        ASSERT_NEAR(b[i], second, 1e-12 * second) << i;
        ASSERT_NEAR(c[i], third, 1e-12 * third) << i;
        ASSERT_NEAR(a[i], triad, 1e-12 * triad) << i;
        sum += triad * second;
      }
      if (!streaming) {
        EXPECT_NEAR(run(StreamLoop::kDot), sum, 1e-12 * sum);
      }
      run(StreamLoop::kNstream);
      const double first = 0.1 + 700, second = kStreamScale * first, third = first + second;
      EXPECT_NEAR(a[700], 2 * (second + kStreamScale * third), 1e-9);
    }
  }
  kernels::select_isa(before);
}

TEST(NumaNodes, ReadsAMadeUpTree) {
  const testing_support::TemporaryDirectory directory;
  const auto node = [&](const std::string& name, const std::string& cpus) {
    std::filesystem::create_directory(directory.path() / name);
    std::ofstream(directory.path() / name / "cpulist") << cpus;
  };
  node("node0", "0-3,8\n");
  node("node10", "12\n");
  node("node2", "4-7\n");
  node("node3", "\n");  // memory without CPUs
  node("power", "0\n");
  std::ofstream(directory.path() / "online") << "0-3,10\n";
  const auto files = posix_files();
  const std::vector<NumaNode> expected{{0, {0, 1, 2, 3, 8}}, {2, {4, 5, 6, 7}}, {10, {12}}};
  EXPECT_EQ(numa_nodes(*files, directory.path().string()), expected);
  EXPECT_TRUE(numa_nodes(*files, (directory.path() / "absent").string()).empty());
  for (const char* bad : {"", "3-", "x", "5-2", "0-99999999", "1,,2", "0-3x"})
    EXPECT_TRUE(numbers_of_list(bad).empty()) << bad;
}

TEST(NumaNodes, ThreadsAreBoundForAWhile) {
  Threads all(0);
  {
    const BoundToCpus nowhere({1 << 20});
    EXPECT_EQ(nowhere.num_cpus(), 0);
    EXPECT_EQ(Threads(0).size(), all.size());
  }
  for (int cpu = 0; cpu < 1024; ++cpu) {
    const BoundToCpus one({cpu});
    if (one.num_cpus() == 0) continue;  // not a CPU that the test may use
    EXPECT_EQ(Threads(0).size(), 1);
    break;
  }
  EXPECT_EQ(Threads(0).size(), all.size());
}

TEST(MachineStream, CountsThreadsAndStreamingStores) {
  const Findings findings = run_part(measure_stream, "triad", 2);
  EXPECT_TRUE(findings.faults.empty());
  std::set<std::pair<std::string, int64_t>> curves;
  for (const machine::RateCurve& curve : findings.profile.rates)
    curves.emplace(curve.subject, curve.threads);
  EXPECT_TRUE(curves.contains({"stream triad", 2}));
  EXPECT_TRUE(curves.contains({"stream triad, 1 thread", 1}));
  EXPECT_EQ(curves.contains({"stream triad, streaming", 2}), has_streaming_stores());
  EXPECT_FALSE(curves.contains({"stream copy", 2}));
  EXPECT_NE(findings.text.find("NUMA node"), std::string::npos);
}

TEST(MachineLayers, RowsStandBesideTheirFloors) {
  const Findings findings = run_part(measure_layers, "attention forward");
  const std::vector<Json> rows = rows_of(findings);
  ASSERT_EQ(rows.size(), 3u);  // two lengths and the crossover
  for (const Json& row : {rows[0], rows[1]}) {
    EXPECT_EQ(row["experiment_name"], "attention forward D 128");
    EXPECT_GT(row["floor_us"], 0);
    EXPECT_GT(row["time_us"], 0);
    EXPECT_NEAR(row["share"].get<double>(),
                row["floor_us"].get<double>() / row["time_us"].get<double>(), 1e-9);
  }
  EXPECT_EQ(rows[2]["experiment_name"], "crossover of attention forward D 128");
  ASSERT_EQ(rows[2]["exponents"].size(), 1u);
  const double exponent = rows[2]["exponents"][0][1];
  EXPECT_EQ(rows[2]["value"].is_null(), exponent <= 1.5);
  EXPECT_NE(findings.text.find("floor_us  share"), std::string::npos) << findings.text;
}

TEST(MachineLayers, OnlyNamesRows) {
  std::set<std::string> subjects;
  for (const Json& row : rows_of(run_part(measure_layers, "recurrence")))
    subjects.insert(row["experiment_name"]);
  EXPECT_TRUE(subjects.contains("recurrence head decay forward"));
  EXPECT_TRUE(subjects.contains("recurrence delta 128 backward"));
  for (const std::string& subject : subjects) EXPECT_TRUE(subject.starts_with("recurrence"));
  const std::string message = testing_support::message_of(
      ErrorKind::kConfig, [&] { run_part(measure_layers, "convolution"); });
  EXPECT_TRUE(message.starts_with("--only convolution names no row")) << message;
}

}  // namespace
}  // namespace ashlar::bench
