// Files that are no traces, or not those of all ranks.
#include <gtest/gtest.h>

#include "ashlar/sim/traces.h"
#include "tests/sim/expect_error.h"

namespace ashlar::sim {
namespace {

using testing_support::expect_error;

std::string trace_text(int rank, const std::string& lines, const char* format = "ashlar-trace-2") {
  return fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"format\":\"{}\",\"rank\":{},\"ranks\":2,"
      "\"dropped_events\":0,\"groups\":[{{\"name\":\"data\",\"lane\":\"world\",\"ranks\":[0,1]}}],"
      "\"tokens\":64}},\"traceEvents\":[\n{}\n]}}\n",
      format, rank, lines);
}

const std::string kStep =
    R"({"ph":"X","name":"step 1","pid":0,"tid":1,"ts":0.0,"dur":9.0,"cat":"step","args":{"step":1}})";
const std::string kPost =
    R"({"ph":"X","name":"post","pid":0,"tid":2,"ts":1.0,"dur":1.0,"cat":"post","args":{"phase":"reduce","collective":"all_reduce","label":"loss","group":"data","ranks":2,"dtype":"F32","bytes":64,"number":7}})";

RankPrograms parse(const std::vector<std::string>& texts) {
  return parse_traces(texts, std::vector<std::string>(texts.size(), "t.json"));
}

TEST(ReadTraces, APostAndItsOperation) {
  const std::string lane =
      R"({"ph":"M","name":"thread_name","pid":0,"tid":3,"args":{"name":"lane world"}})";
  const std::string arrow =
      R"({"ph":"s","cat":"post","name":"post","id":80,"pid":0,"tid":2,"ts":1})";
  const std::string wait =
      R"({"ph":"X","name":"wait","pid":0,"tid":2,"ts":3.0,"dur":1.0,"cat":"wait","args":{"phase":"reduce","lane":"world","ticket":5}})";
  const std::string operation =
      R"({"ph":"X","name":"all_reduce loss","pid":0,"tid":3,"ts":2.0,"dur":1.0,"cat":"operation","args":{"ticket":5,"sent_bytes":64,"received_bytes":60,"rounds":3}})";
  const std::string all =
      lane + ",\n" + kStep + ",\n" + kPost + ",\n" + arrow + ",\n" + wait + ",\n" + operation;
  const RankPrograms programs = parse({trace_text(0, all), trace_text(1, all)});
  EXPECT_EQ(programs.tokens, 64);
  ASSERT_EQ(programs.ranks[1].operations.size(), 1u);
  const RankOperation& o = programs.ranks[1].operations[0];
  EXPECT_EQ(o.received_bytes, 60);
  EXPECT_EQ(o.rounds, 3);
  EXPECT_EQ(o.member, 1);
  EXPECT_EQ(programs.name_of(o), "all_reduce 'loss' (number 7 of data)");
  ASSERT_EQ(programs.ranks[1].events.size(), 3u);
  EXPECT_EQ(programs.ranks[1].events[1].kind, ProgramEvent::Kind::kWait);
  EXPECT_EQ(programs.ranks[1].events[1].value, 0);
}

TEST(ReadTraces, WhatIsNoTraceIsAnError) {
  expect_error([&] { parse({trace_text(0, kStep, "ashlar-trace-1")}); }, ErrorKind::kData,
               "expected ashlar-trace-2");
  expect_error([&] { parse({trace_text(1, kStep)}); }, ErrorKind::kData,
               "is of rank 1; expected 0");
  expect_error([&] { parse({trace_text(0, kPost)}); }, ErrorKind::kData, "t.json has no step");
  expect_error([&] { parse({trace_text(0, kStep + ",\n{\"ph\":\"X\",\"cat\":\"kernel\"")}); },
               ErrorKind::kData, "t.json, line 3");
  std::string other = kPost;
  other.replace(other.find("\"data\""), 6, "\"dada\"");
  expect_error([&] { parse({trace_text(0, kStep + ",\n" + other)}); }, ErrorKind::kData,
               "no group 'dada' of 2 ranks");
}

TEST(ReadTraces, EveryRankNeedsAFileOfOneRecording) {
  const auto files = memory_files();
  Log log([](std::string_view) {});
  files->make_directories("d/trace");
  expect_error([&] { read_traces(*files, "d", log); }, ErrorKind::kData, "has no trace file");
  write_text(*files, "d/trace/steps-2-4-rank-1.json", trace_text(1, kStep));
  expect_error([&] { read_traces(*files, "d", log); }, ErrorKind::kData, "but none of rank 0");
  write_text(*files, "d/trace/steps-2-4-rank-0.json", trace_text(0, kStep));
  EXPECT_EQ(read_traces(*files, "d", log).ranks.size(), 2u);
  write_text(*files, "d/trace/steps-5-6-rank-0.json", trace_text(0, kStep));
  expect_error([&] { read_traces(*files, "d", log); }, ErrorKind::kData, "the recordings");
}

TEST(ReadTraces, RanksThatBeganElsewhereAreNamed) {
  std::string later = kPost;
  later.replace(later.find(":7}"), 3, ":8}");
  const std::string lane =
      R"({"ph":"M","name":"thread_name","pid":0,"tid":3,"args":{"name":"lane world"}})";
  const std::string arrow =
      R"({"ph":"s","cat":"post","name":"post","id":80,"pid":0,"tid":2,"ts":1})";
  const auto text = [&](int rank, const std::string& post) {
    return trace_text(rank, lane + ",\n" + kStep + ",\n" + post + ",\n" + arrow);
  };
  expect_error(
      [&] {
        parse({text(0, kPost), text(1, later)});
      },
      ErrorKind::kData, "rank 0 begins with number 7 of group data, rank 1 with number 8");
}

}  // namespace
}  // namespace ashlar::sim
