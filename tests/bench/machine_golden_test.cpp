// The text and the JSON of `ashlar bench collectives`, as scripts written for nccl-tests read them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/bench/machine/collectives.h"
#include "ashlar/bench/machine/session.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"

namespace ashlar::bench {
namespace {

CollectiveTime golden_time(double us, double bytes, double factor) {
  CollectiveTime time;
  time.us = time.slowest = {us - 1, us, us + 1, 0.05};
  time.times_us = {us - 1, us, us + 1};
  time.algbw = bytes / us * 1e-3;
  time.busbw = time.algbw * factor;
  time.cpu_us = 1.5;
  time.most_of_rank_us = {us, us + 1};
  return time;
}

CollectiveReport golden_report() {
  CollectiveReport report;
  report.group_size = 4;
  report.num_groups = 1;
  for (const int64_t bytes : {1024, 1 << 20}) {
    CollectiveRow& row = report.rows.emplace_back();
    row.engine = "thread";
    row.bytes = bytes;
    row.count = bytes / 4;
    row.out_of_place = golden_time(10 + double(bytes) / 2048, double(bytes), 1.5);
    row.in_place = golden_time(8 + double(bytes) / 2048, double(bytes), 1.5);
  }
  CollectiveRow& row = report.rows.emplace_back();
  row.op = machine::CollectiveOp::kBroadcast;
  row.engine = "thread";
  row.dtype = DType::kBF16;
  row.bytes = 4096;
  row.count = 2048;
  row.root = 2;
  row.in_place = golden_time(16, 4096, 1);
  return report;
}

Findings golden_findings(const CollectiveOptions& options) {
  Findings findings;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(1, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(1);
    const Rig rig{ranks, allocator, threads, "thread", "ashlar bench collectives", "2026-11-26"};
    findings = findings_of(golden_report(), rig, options);
  });
  return findings;
}

TEST(MachineGolden, TextIsThatOfNcclTests) {
  const std::string text = golden_findings({}).text;
  std::ifstream file(ASHLAR_FIXTURES "/bench/collectives.txt");
  EXPECT_EQ(text, std::string(std::istreambuf_iterator<char>(file), {}));
  // Scripts take lines without '#' as rows of 13 words.
  std::istringstream lines(text);
  double sum = 0;
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    ++rows;
    std::istringstream words(line);
    std::vector<std::string> row;
    for (std::string word; words >> word;) row.push_back(word);
    ASSERT_EQ(row.size(), 13u) << line;
    for (const size_t busbw : {7, 11})
      if (row[busbw] != "N/A") sum += std::stod(row[busbw]);
  }
  EXPECT_EQ(rows, 3);
  EXPECT_NEAR(sum / 5, 1.324, 0.005);
}

TEST(MachineGolden, JsonHasTheKeysOfNcclTests) {
  CollectiveOptions options;
  options.per_iteration = true;
  SessionReport report;
  report.start_time = report.end_time = "2026-11-26T00:00:00Z";
  report.command = "ashlar bench collectives --ranks 4";
  report.engine = "thread";
  report.hosts = {"n01"};
  report.devices = {R"({"rank":0,"group":0,"pid":7,"hostname":"n01","device":0,"device_hex":"",)"
                    R"("device_info":"cpu"})"};
  report.parts.push_back({"collectives", golden_findings(options), {0.01, ""}, {}, {}, 2, 0, 0});
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["args"], (Json{"ashlar", "bench", "collectives", "--ranks", "4"}));
  EXPECT_EQ(json["config"]["devices"][0]["hostname"], "n01");
  ASSERT_EQ(json["results"].size(), 3u);
  const Json& row = json["results"][1];
  for (const char* key : {"size", "count", "type", "redop", "root", "out_of_place", "in_place",
                          "out_of_place_per_iter", "in_place_per_iter", "actual_iterations",
                          "experiment_name", "engine", "group_shape", "clock_source"})
    EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_EQ(row["out_of_place"], (Json{{"time", 522.0},
                                       {"alg_bw", 1048576 / 522.0 * 1e-3},
                                       {"bus_bw", 1048576 / 522.0 * 1e-3 * 1.5},
                                       {"nwrong", 0}}));
  EXPECT_EQ(row["in_place_per_iter"]["times_us"], (Json{519.0, 520.0, 521.0}));
  EXPECT_EQ(row["in_place_per_iter"]["p99_us"], 521.0);
  EXPECT_EQ(json["results"][2]["out_of_place"], Json(nullptr));
  EXPECT_EQ(json["results"][2]["type"], "bfloat16");
  const std::string csv = to_csv(report);
  EXPECT_TRUE(csv.starts_with("size,count,type,redop,root,out_of_place.time,")) << csv;
}

}  // namespace
}  // namespace ashlar::bench
