// Lines of ranks, events, goodput, and how long ranks may be silent.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/launch/events.h"
#include "ashlar/launch/goodput.h"
#include "ashlar/launch/rank_log.h"
#include "ashlar/launch/watch.h"

namespace ashlar::launch {
namespace {

TEST(RankLog, FoldsWhatSeveralRanksSay) {
  const auto files = memory_files();
  files->make_directories("launch");
  std::vector<std::string> shown;
  Log console([&](std::string_view line) { shown.emplace_back(line); });
  double now = 1795812380.25;
  {
    RankLog log(*files, "launch", console, [&] { return now; });
    log.begin(3);
    EXPECT_TRUE(files->stat("launch/ranks/3")) << "the next launcher counts on from there";
    for (const int rank : {1, 0, 2, 5}) log.add({rank, "no room"}, "n07");
    log.add({0, "step 1"}, "n07");
    log.add({-1, "mpirun noticed"}, "n07");
    log.flush();
    EXPECT_TRUE(shown.empty()) << "others may say it as well";
    now += 1;
    log.flush();
    EXPECT_EQ(shown, (std::vector<std::string>{"ranks 0-2, 5: no room", "step 1"}));
    log.note("fault 1: a fault");
    log.add({1, "last words"}, "n07");
  }
  EXPECT_EQ(read_text(*files, "launch/log"),
            "2026-11-27T20:46:20.250Z 3 n07 0-2, 5: no room\n"
            "2026-11-27T20:46:20.250Z 3 n07 0: step 1\n"
            "2026-11-27T20:46:20.250Z 3 n07 -: mpirun noticed\n"
            "2026-11-27T20:46:21.250Z 3 launcher: fault 1: a fault\n"
            "2026-11-27T20:46:21.250Z 3 n07 1: last words\n");
  EXPECT_EQ(read_text(*files, "launch/ranks/3/1.log"), "no room\nlast words\n");
}

TEST(RankLog, SurvivesAFullDisk) {
  const auto memory = memory_files();
  memory->make_directories("launch");
  const auto files = faulty_files(*memory, [](int64_t, std::string_view operation, const auto&) {
    return operation == "write" ? Fault::kDiskFull : Fault::kNone;
  });
  int warnings = 0;
  Log console([&](std::string_view line) { warnings += line.starts_with("warning: "); });
  RankLog log(*files, "launch", console, [] { return 0.0; });
  log.begin(1);
  log.add({0, "one"}, "n07");
  log.add({0, "two"}, "n07");
  EXPECT_EQ(warnings, 1);
}

// The schema of docs/survive.md.
TEST(EventLog, WritesRowsThatProgramsRead) {
  const auto files = memory_files();
  Log log([](std::string_view) {});
  Notifier nobody({}, log);
  const std::vector<Evidence> evidence{{EvidenceKind::kGone, 1, 0, "process 7 of rank 1 is gone"},
                                       {EvidenceKind::kSignal, 1, 9, "ended by signal 9"}};
  {
    EventLog events(*files, "events.jsonl", 1, nobody, log);
    events.add("start", 1, Ordered::object());
    Ordered members = members_of(classify(evidence));
    members["detect_s"] = 0.1;
    events.add("fault", 1, members);
  }
  const auto torn = files->append("events.jsonl");
  const std::string half = "{\"v\":1,\"t\":17";
  torn->write_at(std::as_bytes(std::span(half)), torn->size());
  EventLog(*files, "events.jsonl", 1, nobody, log).add("start", 2, Ordered::object());
  std::istringstream text(read_text(*files, "events.jsonl"));
  std::vector<Json> rows;
  for (std::string line; std::getline(text, line);)
    if (const Json row = Json::parse(line, nullptr, false); !row.is_discarded())
      rows.push_back(row);
  ASSERT_EQ(rows.size(), 3u) << "the torn line spoils no other";
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("v"), 1);
    EXPECT_EQ(row.at("epoch"), 1);
    EXPECT_GT(row.at("t").get<double>(), 1.7e9);
    EXPECT_GT(row.at("mono").get<double>(), 0.0);
  }
  EXPECT_EQ(rows[1].at("event"), "fault");
  EXPECT_EQ(rows[1].at("class"), "killed");
  EXPECT_EQ(rows[1].at("confidence"), 0.7);
  EXPECT_EQ(rows[1].at("rank"), 1);
  EXPECT_EQ(rows[1].at("evidence").size(), 2u);
  EXPECT_EQ(rows[1].at("evidence")[1].at("kind"), "signal");
  EXPECT_EQ(rows[2].at("attempt"), 2);
}

TEST(Goodput, AddsUpToTheWallTime) {
  Goodput goodput(100);
  goodput.charge(TimeClass::kStartLoad, 102);
  goodput.charge(TimeClass::kUseful, 110);
  goodput.charge(TimeClass::kUseful, 125);
  goodput.move_to_detect(12);  // the ranks stood still for so long
  goodput.charge(TimeClass::kFencePlace, 126);
  goodput.charge(TimeClass::kRecompute, 130);
  EXPECT_EQ(goodput.seconds(TimeClass::kUseful), 11);
  EXPECT_EQ(goodput.seconds(TimeClass::kDetect), 12);
  double sum = 0;
  for (int i = 0; i < kNumTimeClasses; ++i) sum += goodput.seconds(TimeClass(i));
  EXPECT_EQ(sum, goodput.wall_s());
  EXPECT_EQ(goodput.wall_s(), 30);
  EXPECT_EQ(goodput.text(),
            "goodput: 36.7 % useful (ETTR 0.367) of 30 s; detect 40.0 %, recompute 13.3 %, "
            "start_load 6.7 %, fence_place 3.3 %");
}

TEST(Goodput, FollowsThePageOfRankZero) {
  const auto class_at = [](PulsePlace place, int64_t step, int64_t steps_here) {
    PulsePage page;
    page.place = place;
    page.step = step;
    page.steps_here = steps_here;
    return class_of(page, 50);
  };
  EXPECT_EQ(class_at(PulsePlace::kLoad, 40, 0), TimeClass::kStartLoad);
  EXPECT_EQ(class_at(PulsePlace::kForward, 40, 0), TimeClass::kFirstStep);
  EXPECT_EQ(class_at(PulsePlace::kForward, 49, 9), TimeClass::kRecompute);
  EXPECT_EQ(class_at(PulsePlace::kForward, 50, 10), TimeClass::kUseful);
  EXPECT_EQ(class_at(PulsePlace::kData, 50, 10), TimeClass::kStallData);
  EXPECT_EQ(class_at(PulsePlace::kSaveCopy, 40, 0), TimeClass::kCheckpoint);
  EXPECT_EQ(class_at(PulsePlace::kSaveWait, 60, 20), TimeClass::kStallCheckpoint);
  EXPECT_EQ(class_at(PulsePlace::kEvaluate, 60, 20), TimeClass::kEvaluate);
}

// 8 times the 99th percentile, between the key and 300 s.
TEST(SilenceLimit, FollowsTheLastSilencesOfAPlace) {
  SilenceLimit limit(10);
  EXPECT_EQ(limit.limit_s(PulsePlace::kForward, true), 10);
  EXPECT_EQ(limit.limit_s(PulsePlace::kForward, false), 120) << "the first step";
  EXPECT_EQ(SilenceLimit(10, 5).limit_s(PulsePlace::kForward, false), 120);
  EXPECT_EQ(SilenceLimit(10, 30).limit_s(PulsePlace::kForward, false), 600) << "20 planned steps";
  EXPECT_EQ(SilenceLimit(10, 30).limit_s(PulsePlace::kForward, true), 10);
  EXPECT_EQ(limit.limit_s(PulsePlace::kLoad, false), 300);
  EXPECT_EQ(limit.limit_s(PulsePlace::kSaveWait, true), 300);
  EXPECT_EQ(SilenceLimit(900).limit_s(PulsePlace::kLoad, false), 900) << "the key";
  for (int i = 0; i < 200; ++i) limit.add(PulsePlace::kEvaluate, i < 190 ? 0.1 : 5);
  EXPECT_EQ(limit.limit_s(PulsePlace::kEvaluate, true), 40);
  EXPECT_EQ(limit.limit_s(PulsePlace::kForward, true), 10) << "another place";
  for (int i = 0; i < 200; ++i) limit.add(PulsePlace::kEvaluate, 100);
  EXPECT_EQ(limit.limit_s(PulsePlace::kEvaluate, true), 300);
  for (int i = 0; i < 200; ++i) limit.add(PulsePlace::kEvaluate, 0.1);
  EXPECT_EQ(limit.limit_s(PulsePlace::kEvaluate, true), 10) << "older ones are forgotten";
}

}  // namespace
}  // namespace ashlar::launch
