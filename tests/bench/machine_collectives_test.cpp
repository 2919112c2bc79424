// Collectives of `ashlar bench`: the arithmetic of bandwidths, exact data, and counted errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collective_timing.h"
#include "ashlar/bench/machine/collectives.h"
#include "ashlar/bench/machine/pair_times.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"
#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

using machine::CollectiveOp;
using testing_support::message_of;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kU8};

constexpr CollectiveOp kMoving[] = {CollectiveOp::kAllReduce,     CollectiveOp::kAllGather,
                                    CollectiveOp::kReduceScatter, CollectiveOp::kAllToAll,
                                    CollectiveOp::kAllToAllV,     CollectiveOp::kBroadcast,
                                    CollectiveOp::kReduce,        CollectiveOp::kGather,
                                    CollectiveOp::kScatter,       CollectiveOp::kSendReceive};

// Every rank's body with a rig of its own.
void on_ranks(int num_ranks, const std::function<void(const Rig& rig)>& body) {
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(1);
    Rig rig{ranks, allocator, threads, "thread", "ashlar bench collectives", "2026-11-26"};
    rig.quick = true;
    body(rig);
  });
}

CollectiveTime time_of(double us, double gbps, int64_t num_wrong) {
  CollectiveTime time;
  time.us = time.slowest = {us, us, us, 0};
  time.times_us = {us};
  time.algbw = time.busbw = gbps;
  time.num_wrong = num_wrong;
  return time;
}

CollectiveOptions tiny_options() {
  CollectiveOptions options;
  options.min_bytes = 64;
  options.max_bytes = 4096;
  options.factor = 8;
  options.iterations = 2;
  options.warm_up = 1;
  return options;
}

TEST(MachineCollectives, EveryOperationTypeAndNumberOfRanksIsExact) {
  for (const int num_ranks : {2, 3, 4, 5, 8}) {
    CollectiveOptions options = tiny_options();
    options.dtypes.assign(std::begin(kTypes), std::end(kTypes));
    options.ops.assign(std::begin(kMoving), std::end(kMoving));
    options.root = num_ranks - 1;
    on_ranks(num_ranks, [&](const Rig& rig) {
      const CollectiveReport report = measure_collectives(rig, options);
      EXPECT_EQ(report.rows.size(), 10u * 5 * 3);
      for (const CollectiveRow& row : report.rows)
        EXPECT_EQ(row.num_wrong(), 0) << machine::to_string(row.op) << " " << name_of(row.dtype)
                                      << " " << row.bytes << " on " << num_ranks;
    });
  }
}

// Tensors that begin 1 or 3 elements behind aligned memory, counts that no power of two divides,
// and a group of one, which nothing leaves.
TEST(MachineCollectives, UnalignedTensorsAndOneRankAreExact) {
  Allocator allocator(Device::kCpu);
  for (const int num_ranks : {1, 2, 3, 4, 5, 8})
    comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
      for (const CollectiveOp op : kMoving)
        for (const DType dtype : kTypes)
          for (const bool in_place : {false, true})
            for (const int64_t offset : {1, 3}) {
              if (!CollectiveCase::exists(op, in_place)) continue;
              CollectiveCase c(allocator, ranks, op, dtype, 1000 + 16 * 7, in_place, num_ranks - 1,
                               offset);
              c.fill(9);
              c.run();
              EXPECT_EQ(c.num_wrong(9), 0) << machine::to_string(op) << " " << name_of(dtype)
                                           << " on " << num_ranks << " in place " << in_place;
            }
    });
}

TEST(MachineCollectives, EverySingleBitOfASumThatIsWrongCounts) {
  Allocator allocator(Device::kCpu);
  comm::run_ranks(3, {}, allocator, [&](comm::Group& ranks) {
    for (const DType dtype : kTypes) {
      const ExactData data{5, 3};
      const OwnedTensor owned = make_tensor(allocator, dtype, {17}, Tag::kInput);
      const Tensor& sum = owned.tensor;
      data.fill(sum, ranks.rank());
      ranks.all_reduce(sum, sum, "sum").wait();
      ASSERT_EQ(data.num_wrong_sums(sum), 0);
      for (int64_t byte = 0; byte < sum.bytes(); ++byte)
        for (int bit = 0; bit < 8; ++bit) {
          sum.data[byte] ^= std::byte(1 << bit);
          EXPECT_EQ(data.num_wrong_sums(sum), 1) << name_of(dtype);
          sum.data[byte] ^= std::byte(1 << bit);
        }
    }
  });
}

TEST(MachineCollectives, EverySingleBitThatIsWrongCounts) {
  const ExactData data{7, 3};
  Allocator allocator(Device::kCpu);
  for (const DType dtype : kTypes) {
    const OwnedTensor owned = make_tensor(allocator, dtype, {33}, Tag::kInput);
    const Tensor& tensor = owned.tensor;
    data.fill(tensor, 2, 5);
    ASSERT_EQ(data.num_wrong_copies(tensor, 2, 5), 0);
    EXPECT_GT(data.num_wrong_copies(tensor, 1, 5), 20);
    EXPECT_GT(data.num_wrong_copies(tensor, 2, 6), 20);
    for (int64_t byte = 0; byte < tensor.bytes(); ++byte)
      for (int bit = 0; bit < 8; ++bit) {
        tensor.data[byte] ^= std::byte(1 << bit);
        EXPECT_EQ(data.num_wrong_copies(tensor, 2, 5), 1) << name_of(dtype);
        tensor.data[byte] ^= std::byte(1 << bit);
      }
  }
}

// Any order of additions gives the expected sum, also where the significand cannot count the ranks.
TEST(MachineCollectives, SumsOfManyRanksAreExact) {
  Allocator allocator(Device::kCpu);
  constexpr int64_t kLength = 50;
  for (const int64_t num_ranks : {1, 7, 300}) {
    const ExactData data{3, num_ranks};
    const OwnedTensor one = make_tensor(allocator, DType::kBF16, {kLength}, Tag::kInput),
                      sum = make_tensor(allocator, DType::kBF16, {kLength}, Tag::kInput);
    for (const bool backwards : {false, true}) {
      for (int64_t i = 0; i < kLength; ++i) sum.tensor.as<bf16>()[i] = bf16(0.0f);
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        data.fill(one.tensor, backwards ? num_ranks - 1 - rank : rank);
        for (int64_t i = 0; i < kLength; ++i)
          sum.tensor.as<bf16>()[i] =
              bf16(float(sum.tensor.as<bf16>()[i]) + float(one.tensor.as<bf16>()[i]));
      }
      EXPECT_EQ(data.num_wrong_sums(sum.tensor), 0) << num_ranks;
    }
  }
}

TEST(MachineCollectives, WrongElementsBecomeAVerdict) {
  CollectiveReport report;
  report.group_size = 2;
  report.num_groups = 1;
  CollectiveRow& row = report.rows.emplace_back();
  row.bytes = 1024;
  row.count = 256;
  row.out_of_place = time_of(1, 1, 3);
  on_ranks(1, [&](const Rig& rig) {
    const Findings findings = findings_of(report, rig, {});
    ASSERT_EQ(findings.faults.size(), 1u);
    const machine::Judgement judgement = machine::judge(findings.faults[0], {});
    EXPECT_EQ(judgement.verdict, machine::Verdict::kWrongData);
    EXPECT_EQ(machine::exit_code(judgement.verdict, false), 5);
    EXPECT_NE(findings.text.find("# Out of bounds values : 3 FAILED"), std::string::npos);
    EXPECT_EQ(Json::parse(findings.rows[0])["wrong"], 3);
  });
}

TEST(MachineCollectives, BandwidthsFollowSizesTimesAndFactors) {
  on_ranks(4, [&](const Rig& rig) {
    for (const CollectiveRow& row : measure_collectives(rig, tiny_options()).rows)
      for (const auto& time : {row.out_of_place, row.in_place}) {
        if (!time) continue;
        EXPECT_DOUBLE_EQ(time->algbw, double(row.bytes) / (1e3 * time->us.median));
        EXPECT_NEAR(time->busbw, time->algbw * machine::bus_factor(row.op, 4), 1e-12 * time->busbw);
        EXPECT_EQ(time->times_us.size(), 2u);
      }
  });
}

// Ranks' times as nccl-tests' -a takes them.
TEST(MachineCollectives, TimesOfRanksByEveryRule) {
  const std::vector<double> by_rank = {1, 5, 2, 3, 6, 4};  // of three ranks
  const auto of = [&](OfRanks rule) { return times_of_ranks(by_rank, 3, rule); };
  EXPECT_EQ(of(OfRanks::kFirst), (std::vector<double>{1, 5}));
  EXPECT_EQ(of(OfRanks::kAverage), (std::vector<double>{3, 4}));
  EXPECT_EQ(of(OfRanks::kLeast), (std::vector<double>{1, 3}));
  EXPECT_EQ(of(OfRanks::kLargest), (std::vector<double>{6, 5}));
}

TEST(MachineCollectives, AggregatesSkipsAndTellsIterations) {
  CollectiveOptions options = tiny_options();
  options.ops = {CollectiveOp::kAllReduce, CollectiveOp::kBroadcast};
  options.aggregate = 70;  // more than a queue holds
  options.max_bytes = 64;
  options.iterations = 9;
  options.skip = 4;
  options.root = -1;
  on_ranks(3, [&](const Rig& rig) {
    CollectiveOptions mine = options;
    for (const bool told : {false, true}) {
      mine.per_iteration = mine.cpu_time = told;
      const CollectiveReport report = measure_collectives(rig, mine);
      EXPECT_EQ(report.rows.size(), 1u + 3);  // every root of broadcast in turn
      for (const CollectiveRow& row : report.rows) {
        EXPECT_EQ(row.best_known().times_us.size(), 5u);
        EXPECT_EQ(row.best_known().most_of_rank_us.size(), 3u);
        EXPECT_GT(row.best_known().cpu_us, 0);
        EXPECT_LE(row.best_known().cpu_us, row.best_known().slowest.p90);
        EXPECT_GE(row.best_known().slowest.median, row.best_known().us.median);
      }
      const Findings findings = findings_of(report, rig, mine);
      if (!rig.leads()) continue;
      EXPECT_EQ(findings.text.find("i_p99") != std::string::npos, told);
      EXPECT_EQ(findings.profile.collectives.size(), 2u);
      const Json row = Json::parse(findings.rows[0]);
      EXPECT_EQ(row["actual_iterations"], 5);
      EXPECT_EQ(row.contains("out_of_place_per_iter"), told);
      const CollectiveTime& time = *report.rows[0].out_of_place;
      EXPECT_EQ(row["out_of_place"]["time"], told ? time.cpu_us : time.us.median);
      if (!told) continue;
      for (const char* key : {"min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us",
                              "stdev_us", "cv_pct", "times_us", "per_process_max_times_us"})
        EXPECT_TRUE(row["in_place_per_iter"].contains(key)) << key;
    }
  });
  options.skip = 9;
  EXPECT_EQ(
      message_of(ErrorKind::kConfig,
                 [&] { on_ranks(2, [&](const Rig& rig) { measure_collectives(rig, options); }); })
          .substr(0, 55),
      "--skip is 9 but a row has 9 iterations; expected fewer ");
}

// Two engines' rows of a size, beside each other.
TEST(MachineCollectives, EnginesStandSideBySide) {
  CollectiveReport report;
  report.group_size = 2;
  report.num_groups = 1;
  for (const int64_t bytes : {1024, 4096})
    for (const char* engine : {"mpi", "mpi-native"}) {
      CollectiveRow& row = report.rows.emplace_back();
      row.engine = engine;
      row.bytes = bytes;
      const double us = (engine == std::string("mpi") ? 10 : 4) * double(bytes) / 1024;
      row.out_of_place = row.in_place = time_of(us, 1, 0);
    }
  CollectiveOptions options;
  options.engines = {CollectiveEngine::kExact, CollectiveEngine::kNative};
  on_ranks(1, [&](const Rig& rig) {
    const Findings findings = findings_of(report, rig, options);
    EXPECT_NE(findings.text.find("engine mpi, mpi-native;"), std::string::npos) << findings.text;
    EXPECT_NE(findings.text.find(" mpi-native  0.40\n"), std::string::npos) << findings.text;
    const Json row = Json::parse(findings.rows[3]);
    EXPECT_EQ(row["engine"], "mpi-native");
    EXPECT_EQ(row["size"], 4096);
    EXPECT_DOUBLE_EQ(row["time_over_first_engine"].get<double>(), 0.4);
    ASSERT_EQ(findings.profile.collectives.size(), 2u);
    EXPECT_EQ(findings.profile.collectives[1].engine, "mpi-native");
    EXPECT_EQ(findings.profile.collectives[1].points.size(), 2u);
  });
  options.shape = parse_shape("block:2");
  options.engines = {CollectiveEngine::kNative};
  EXPECT_TRUE(message_of(ErrorKind::kConfig, [&] {
                on_ranks(2, [&](const Rig& rig) { measure_collectives(rig, options); });
              }).starts_with("--engines has exact or native, which are MPI's"));
}

TEST(MachineCollectives, TheAverageBandwidthIsDemanded) {
  CollectiveReport report;
  report.group_size = 2;
  report.num_groups = 1;
  CollectiveRow& row = report.rows.emplace_back();
  row.bytes = 1024;
  row.out_of_place = time_of(1, 9.1, 0);
  CollectiveOptions options;
  for (const double wanted : {10.0, 10.2}) {  // 0.9 of them are 9 and 9.18
    options.min_busbw = wanted;
    on_ranks(1, [&](const Rig& rig) {
      const Findings findings = findings_of(report, rig, options);
      const bool enough = wanted == 10;
      ASSERT_TRUE(findings.demand);
      EXPECT_EQ(machine::exit_code(findings.demand->verdict, false), enough ? 0 : 4);
      EXPECT_NE(findings.text.find(enough ? ": 9.1 OK\n" : ": 9.1 FAILED\n"), std::string::npos);
    });
  }
}

TEST(MachineCollectives, GroupsOfEveryShape) {
  const std::pair<const char*, std::pair<int64_t, int64_t>> shapes[] = {
      {"all", {8, 1}},      {"node", {8, 1}},    {"rail", {1, 8}},
      {"stride:2", {4, 2}}, {"block:4", {4, 2}}, {"pairs", {2, 4}}};
  for (const auto& [shape, expected] : shapes)
    for (const bool alone : {false, true}) {
      CollectiveOptions options = tiny_options();
      options.ops = {CollectiveOp::kAllReduce, CollectiveOp::kAllGather};
      options.shape = parse_shape(shape);
      options.alone = alone;
      on_ranks(8, [&](const Rig& rig) {
        const CollectiveReport report = measure_collectives(rig, options);
        EXPECT_EQ(report.group_size, expected.first) << shape;
        EXPECT_EQ(report.num_groups, alone ? 1 : expected.second) << shape;
        for (const CollectiveRow& row : report.rows) EXPECT_EQ(row.num_wrong(), 0) << shape;
        const Findings findings = findings_of(report, rig, options);
        if (!rig.leads()) return;
        ASSERT_EQ(findings.profile.collectives.size(), 2u * (rig.quick ? 1 : 2));
        EXPECT_EQ(findings.profile.collectives[0].shape, shape);
      });
    }
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { parse_shape("stride"); }),
            "--shape is stride; expected all, node, rail, pairs, stride:N or block:N");
  CollectiveOptions uneven = tiny_options();
  uneven.shape = parse_shape("block:2");
  const std::string message = message_of(ErrorKind::kConfig, [&] {
    on_ranks(3, [&](const Rig& rig) { measure_collectives(rig, uneven); });
  });
  EXPECT_NE(message.find("groups of 2 and 1 of 3 ranks"), std::string::npos) << message;
}

TEST(MachineCollectives, PairsMeetOnceAndCarryTheirData) {
  for (const int num_ranks : {2, 3, 4})
    on_ranks(num_ranks, [&](const Rig& rig) {
      const Findings findings = measure_p2p(rig);
      if (!rig.leads()) return;
      EXPECT_TRUE(findings.faults.empty());
      EXPECT_EQ(int64_t(findings.rows.size()), 3 * num_ranks * (num_ranks - 1) / 2);
      std::set<std::string> pairs;
      for (const std::string& row : findings.rows) pairs.insert(Json::parse(row)["ranks"].dump());
      EXPECT_EQ(int64_t(pairs.size()), num_ranks * (num_ranks - 1) / 2);
      EXPECT_NE(findings.profile.find("topology.link_latency"), nullptr);
      EXPECT_EQ(findings.profile.collectives.at(0).points.size(), 3u);
      const machine::PairTimes& kept = findings.profile.pairs.at(0);
      ASSERT_EQ(int64_t(kept.pairs.size()), num_ranks * (num_ranks - 1) / 2);
      EXPECT_EQ(kept.pairs.back().second, num_ranks - 1);
      for (const machine::PairOfTimes& pair : kept.pairs) {
        EXPECT_LT(pair.first, pair.second);
        EXPECT_GT(pair.latency_us, 0);
        EXPECT_GT(pair.gbps, 0);
      }
    });
}

// As with more than 8 ranks: the pairs of a round run at once.
TEST(MachineCollectives, PairsOfARoundRunAtOnce) {
  for (const int num_ranks : {9, 10})
    on_ranks(num_ranks, [&](const Rig& rig) {
      for (const PairRound& round : rounds_of_pairs(num_ranks))
        for (const PairTime& time : time_pairs(rig, round, 64)) {
          EXPECT_EQ(time.num_wrong, 0);
          EXPECT_EQ(time.one_way_us.size(), 30u);
          EXPECT_GT(time.one_way_us[0], 0);
        }
    });
}

}  // namespace
}  // namespace ashlar::bench
