// Where the time of a save went: the file that says so, and ranks that are named as slow, all of
// them and no others, from phases drawn at random.
#include "ashlar/checkpoint/writers/timing.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

Timing drawn(int writers, uint64_t seed) {
  Draw draw(seed, "timing");
  const auto seconds = [&] { return double(draw.below(10'000'000)) * 1e-6; };
  Timing timing{draw.below(1000), writers, {}};
  for (int rank = 0; rank < writers; ++rank) {
    RankTimes& times = timing.ranks.emplace_back();
    times.rank = rank;
    times.host = fmt::format("node-{:05}", rank / 8);
    for (PhaseTime& time : times.phases)
      if (draw.below(3)) time = {seconds(), 1e-6 + seconds(), draw.below(1 << 30), draw.below(4)};
    for (int64_t f = draw.below(4); f > 0; --f) times.file_s.push_back(float(seconds()));
  }
  return timing;
}

void expect_equal(const RankTimes& a, const RankTimes& b, double error_s) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.host, b.host);
  for (size_t p = 0; p < kNumPhases; ++p) {
    EXPECT_NEAR(a.phases[p].start_s, b.phases[p].start_s, error_s);
    EXPECT_NEAR(a.phases[p].seconds, b.phases[p].seconds, error_s);
    EXPECT_EQ(a.phases[p].bytes, b.phases[p].bytes);
    EXPECT_EQ(a.phases[p].retries, b.phases[p].retries);
  }
  ASSERT_EQ(a.file_s.size(), b.file_s.size());
  for (size_t f = 0; f < a.file_s.size(); ++f) EXPECT_NEAR(a.file_s[f], b.file_s[f], error_s);
}

TEST(Timing, IsReadAsItWasBuilt) {
  for (const int writers : {1, 2, 7, 100}) {
    const Timing timing = drawn(writers, uint64_t(writers));
    const std::string text = build_timing(timing);
    const Timing read = parse_timing(text, "file");
    EXPECT_EQ(read.step, timing.step);
    EXPECT_EQ(read.num_writers, writers);
    ASSERT_EQ(read.ranks.size(), size_t(writers));
    for (size_t i = 0; i < read.ranks.size(); ++i)
      expect_equal(read.ranks[i], timing.ranks[i], 1e-6);
    EXPECT_EQ(build_timing(read), text);
  }
}

TEST(Timing, HasTheDocumentedForm) {
  Timing timing{12, 3, {RankTimes{}}};
  timing.ranks[0].host = "n\"7\x1b\xff";
  timing.ranks[0].phases[size_t(Phase::kCopy)] = {0.0125, 1.5, 4096, 0};
  timing.ranks[0].phases[size_t(Phase::kWrite)] = {0.25, 2, 4096, 1};
  timing.ranks[0].file_s = {2.25f, 0.5f};
  EXPECT_EQ(build_timing(timing),
            R"({"format":"ashlar-timing","v":1,"step":12,"num_writers":3,"writers":[
{"rank":0,"host":"n\"7\u001b\ufffd","phases":{"copy":[0.0125,1.5,4096,0],"write":[0.25,2,4096,1]},"files":[2.25,0.5]}
]}
)");
}

// The message that refuses the file `from` with `what` put in place of `part`.
std::string refusal(const std::string& part, const std::string& what) {
  std::string text = R"({"format":"ashlar-timing","v":1,"step":12,"num_writers":2,"writers":[)"
                     R"({"rank":0,"host":"a","phases":{"copy":[0.5,1.5,4096,0]},"files":[0.25]},)"
                     R"({"rank":1,"host":"b","phases":{},"files":[]}]})";
  const size_t at = text.find(part);
  EXPECT_NE(at, text.npos) << part;
  text.replace(at, part.size(), what);
  return message_of(ErrorKind::kCorrupt, [&] { parse_timing(text, "file"); });
}

TEST(Timing, RefusesWhatIsNoTiming) {
  const auto expect = [](const std::string& part, const std::string& what,
                         const std::string& message) {
    const std::string found = refusal(part, what);
    EXPECT_EQ(found.substr(0, message.size()), message) << part << " -> " << what;
  };
  expect("{", "", "file: not valid JSON");
  expect("ashlar-timing", "ashlar", "file: format is 'ashlar'; expected 'ashlar-timing'");
  expect("\"v\":1", "\"v\":2", "file: version 2 is unknown");
  expect("\"v\":1", "\"v\":1,\"v\":1", "file: ");
  expect("\"v\":1", "\"v\":1,\"more\":1", "file: unknown key 'more'");
  expect("12", "-1", "file: step is -1");
  expect("12", "1e300", "file: step is 1e+300");
  expect("\"num_writers\":2", "\"num_writers\":0", "file: num_writers is 0");
  expect("\"num_writers\":2", "\"num_writers\":1000000000000",
         "file: num_writers is 1000000000000");
  expect("\"num_writers\":2", "\"num_writers\":3",
         "file: there are 2 writers; expected 1 or all 3");
  expect("\"rank\":1", "\"rank\":0", "file: writer 2: rank is 0");
  expect("\"host\":\"a\"", "\"host\":7", "file: writer 1: host is 7; expected a string");
  expect("\"host\":\"a\",", "", "file: writer 1: key 'host' is missing");
  expect("\"rank\":1", "\"rank\":1,\"x\":0", "file: writer 2: unknown key 'x'");
  expect("\"copy\"", "\"nap\"", "file: writer 1: phases: 1 of 1 names are no phase");
  expect("0.5,1.5,4096,0", "0.5,1.5,4096", "file: writer 1: phases: copy has 3 values");
  expect("[0.5,1.5,4096,0]", "7", "file: writer 1: phases: copy is 7; expected a list");
  expect("1.5", "-1.5", "file: writer 1: phases: copy holds -1.5; expected seconds");
  expect("1.5", "1e10", "file: writer 1: phases: copy holds 1");
  expect("1.5", "1e999", "file: not valid JSON");
  expect("1.5", "null", "file: writer 1: phases: copy holds null; expected seconds");
  expect("4096", "-4096", "file: writer 1: phases: copy holds -4096; expected an integer");
  expect("4096", "0.5", "file: writer 1: phases: copy holds 0.5; expected an integer");
  expect("4096", "99999999999999999999", "file: writer 1: phases: copy holds 1");
  expect("0.25", "\"x\"", "file: writer 1: files holds \"x\"; expected seconds");
  expect("[0.25]", "{}", "file: writer 1: files is {}; expected a list");
  const std::string large(size_t(kMaxTimingBytes) + 1, ' ');
  EXPECT_EQ(message_of(ErrorKind::kCorrupt, [&] { parse_timing(large, "file"); }),
            "file: 67108865 bytes; at most 67108864 are allowed");
  const std::string many = "[" + std::string(5'000'000, '[') + "]";
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { parse_timing(many, "file"); }), "");
}

TEST(Timing, ANegativeZeroIsZero) {
  const std::string text =
      R"({"format":"ashlar-timing","v":1,"step":0,"num_writers":1,"writers":[{"rank":0,"host":"",)"
      R"("phases":{"copy":[-0.0,1,0,0]},"files":[-0.0]}]})";
  const std::string again = build_timing(parse_timing(text, "file"));
  EXPECT_EQ(again.find("-0"), again.npos) << again;
}

TEST(Timing, EveryCutAndEveryFlipIsReadOrRefused) {
  const std::string text = build_timing(drawn(3, 5));
  int refused = 0;
  const auto read = [&](const std::string& damaged) {
    try {
      parse_timing(damaged, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      ++refused;
    }
  };
  for (size_t length = 0; length + 1 < text.size(); ++length) read(text.substr(0, length));
  EXPECT_EQ(refused, int(text.size()) - 1);
  for (size_t i = 0; i < 8 * text.size(); ++i) {
    std::string damaged = text;
    damaged[i / 8] = char(damaged[i / 8] ^ (1 << i % 8));
    read(damaged);
  }
}

TEST(Timing, TravelsInMessages) {
  const Timing timing = drawn(50, 9);
  control::WireWriter out;
  for (const RankTimes& times : timing.ranks) put(out, times);
  const std::vector<std::byte> bytes = out.take();
  control::WireReader in(bytes);
  for (const RankTimes& times : timing.ranks) expect_equal(get_rank_times(in), times, 0);
  in.end();
  RankTimes wrong;
  wrong.phases[0].seconds = std::numeric_limits<double>::infinity();
  put(out, wrong);
  const std::vector<std::byte> damaged = out.take();
  EXPECT_NE(message_of(ErrorKind::kComm,
                       [&] {
                         control::WireReader again(damaged);
                         get_rank_times(again);
                       }),
            "");
}

TEST(Timing, OfManyWritersIsCheap) {
  Timing timing = drawn(10240, 3);
  for (RankTimes& times : timing.ranks) {
    for (const Phase late : {Phase::kCommit, Phase::kVerify, Phase::kRemove})
      times.phases[size_t(late)] = {};
    times.file_s = {1.5f, 2.5f};
  }
  const Clock::time_point begin = Clock::now();
  const std::string text = build_timing(timing);
  const double build_s = seconds_since(begin);
  const Clock::time_point parsing = Clock::now();
  parse_timing(text, "file");
  const double parse_s = seconds_since(parsing);
  const Clock::time_point finding = Clock::now();
  find_outliers(timing.ranks);
  std::printf("10240 writers: %.2f MB, built in %.1f ms, parsed in %.0f ms, outliers in %.1f ms\n",
              1e-6 * double(text.size()), 1e3 * build_s, 1e3 * parse_s,
              1e3 * seconds_since(finding));
  EXPECT_LT(int64_t(text.size()), kChunkBytes);
  EXPECT_LT(build_s, 0.5);
}

const Phase kOwnWork[] = {Phase::kPlan,  Phase::kCopy, Phase::kHash,
                          Phase::kWrite, Phase::kSync, Phase::kVerify};

// A save of ranks that do alike, but for 20 % more or less of everything.
std::vector<RankTimes> alike(int num_ranks, Draw& draw) {
  std::vector<RankTimes> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    RankTimes& times = ranks.emplace_back();
    times.rank = rank;
    times.host = fmt::format("n{}", rank / 8);
    times.file_s = {1, 1};
    for (const Phase phase : kOwnWork) {
      const double noise = 0.8 + 0.4 * double(draw.below(1001)) / 1000;
      times.phases[size_t(phase)] = {0, (0.1 + double(phase)) * noise, 1 << 20, 0};
    }
  }
  return ranks;
}

class Outliers : public testing::TestWithParam<int> {};

TEST_P(Outliers, AreTheSlowRankAloneAndNobodyWithout) {
  const int num_ranks = GetParam();
  Draw draw(uint64_t(num_ranks), "outliers");
  int named = 0;
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<RankTimes> ranks = alike(num_ranks, draw);
    EXPECT_TRUE(find_outliers(ranks).empty());
    // Rank 0 plans for all and is not compared: of two ranks nobody is left then.
    const Phase phase = kOwnWork[num_ranks > 2 ? draw.below(6) : 1 + draw.below(5)];
    const int first = phase == Phase::kPlan;
    const int slow = first + int(draw.below(num_ranks - first));
    ranks[size_t(slow)].phases[size_t(phase)].seconds *= 5;
    const std::vector<Outlier> outliers = find_outliers(ranks);
    ASSERT_EQ(outliers.size(), 1u) << trial;
    EXPECT_EQ(outliers[0].rank, slow);
    EXPECT_EQ(outliers[0].phase, phase);
    EXPECT_EQ(outliers[0].host, ranks[size_t(slow)].host);
    EXPECT_EQ(outliers[0].seconds, ranks[size_t(slow)].phases[size_t(phase)].seconds);
    ++named;
  }
  EXPECT_EQ(named, 100);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Outliers, testing::Values(2, 4, 64, 1024));

TEST(OutlierRule, IsOfTimeForTheSameWork) {
  Draw draw(1, "work");
  std::vector<RankTimes> ranks = alike(8, draw);
  // Three times the bytes in three times the time; and six small files more, which take long.
  for (const Phase phase : {Phase::kCopy, Phase::kHash, Phase::kWrite, Phase::kSync}) {
    PhaseTime& more_bytes = ranks[3].phases[size_t(phase)];
    more_bytes.bytes *= 3;
    more_bytes.seconds *= 3;
    ranks[0].phases[size_t(phase)].seconds *= 4;
  }
  ranks[0].file_s.assign(8, 1);
  EXPECT_TRUE(find_outliers(ranks).empty());
  // Small files that take no time are no excuse.
  ranks[0].file_s = {4, 4, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f};
  const std::vector<Outlier> outliers = find_outliers(ranks);
  ASSERT_EQ(outliers.size(), 4u);
  for (const Outlier& outlier : outliers) EXPECT_EQ(outlier.rank, 0);
  ranks[0].file_s.assign(8, 1);
  // Ranks that have no data are no measure for those that have.
  for (size_t rank = 3; rank < 8; ++rank) {
    ranks[rank].file_s.clear();
    for (const Phase phase : {Phase::kCopy, Phase::kHash, Phase::kWrite, Phase::kSync})
      ranks[rank].phases[size_t(phase)] = {};
  }
  EXPECT_TRUE(find_outliers(ranks).empty());
  ranks[1].phases[size_t(Phase::kWrite)].seconds *= 5;
  ASSERT_EQ(find_outliers(ranks).size(), 1u);
  EXPECT_EQ(find_outliers(ranks)[0].rank, 1);
}

TEST(OutlierRule, LeavesMillisecondsAndSingleRanksAlone) {
  std::vector<RankTimes> ranks(4);
  for (RankTimes& times : ranks) times.phases[size_t(Phase::kWrite)] = {0, 0.001, 1 << 20, 0};
  ranks[2].phases[size_t(Phase::kWrite)].seconds = 0.0109;
  EXPECT_TRUE(find_outliers(ranks).empty());
  ranks[2].phases[size_t(Phase::kWrite)].seconds = 0.0111;
  EXPECT_EQ(find_outliers(ranks).size(), 1u);
  EXPECT_TRUE(find_outliers(std::span(ranks).first(1)).empty());
  EXPECT_TRUE(find_outliers({}).empty());
}

TEST(OutlierRule, SaysWhoAndHowSlow) {
  EXPECT_EQ(to_text(Outlier{3, "n07", Phase::kWrite, 2.104, 0.42}),
            "rank 3 on n07 is slow: writing took 2.10 s, median 0.42 s");
  EXPECT_EQ(to_text(Outlier{0, "", Phase::kVerify, 9, 1}),
            "rank 0 is slow: reading back took 9.00 s, median 1.00 s");
  EXPECT_EQ(to_text(Outlier{1, "", Phase::kSync, 0.0312, 0.0004}),
            "rank 1 is slow: syncing took 0.031 s, median 0.000 s");
}

TEST(PhaseSummaries, AreOfAllRanks) {
  std::vector<RankTimes> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks[size_t(rank)].rank = rank;
    ranks[size_t(rank)].phases[size_t(Phase::kSync)].seconds = double((rank * 3 + 1) % 4);
  }
  const auto summary = summarize(ranks, Phase::kSync);  // 1 0 3 2
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->min_s, 0);
  EXPECT_EQ(summary->median_s, 1);
  EXPECT_EQ(summary->max_s, 3);
  EXPECT_EQ(summary->rank, 2);
  EXPECT_FALSE(summarize(ranks, Phase::kHash));
}

}  // namespace
}  // namespace ashlar::checkpoint
