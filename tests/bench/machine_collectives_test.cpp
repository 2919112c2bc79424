// Collectives of `ashlar bench`: the arithmetic of bandwidths, exact data, and counted errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collectives.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"
#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

using machine::CollectiveOp;
using testing_support::message_of;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kU8};

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
    options.ops = {CollectiveOp::kAllReduce,     CollectiveOp::kAllGather,
                   CollectiveOp::kReduceScatter, CollectiveOp::kAllToAll,
                   CollectiveOp::kAllToAllV,     CollectiveOp::kBroadcast,
                   CollectiveOp::kReduce,        CollectiveOp::kGather,
                   CollectiveOp::kScatter,       CollectiveOp::kSendReceive};
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
  row.out_of_place = CollectiveTime{{1, 1, 1, 0}, {1}, 1, 1, 3};
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
    });
}

}  // namespace
}  // namespace ashlar::bench
