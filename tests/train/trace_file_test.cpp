// Runs that write traces (train.trace_steps), and what stands in the files.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/nn/precision.h"
#include "ashlar/train/records/traced_steps.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::TemporaryDirectory;
using Json = nlohmann::json;

constexpr int kNumRanks = 4;

// A run of the tiny recipe on four ranks, three of whose steps are recorded.
class TracedRun {
 public:
  explicit TracedRun(std::vector<std::string> overrides) {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 400; ++d)
      documents.emplace_back(size_t(1 + d * 7 % 60), int32_t(d % 256));
    const std::string prefix = root_ / "text";
    data::write_documents(*files_, prefix, documents, 256);
    overrides.insert(overrides.begin(),
                     {"data.train=" + prefix, "train.run_dir=" + (root_ / "run").string(),
                      "data.tokenizer=byte", "train.threads=1", "train.micro_batch=1",
                      "train.global_batch=8", "parallel.tp=2", "checkpoint.every=-1"});
    recipe_ = load_recipe(testing_support::kTiny, overrides);
    Log log([&](std::string_view line) { said_ += std::string(line) + "\n"; });
    start_run(recipe_, *files_, log, {.num_ranks = kNumRanks, .report = {}});
  }
  const Recipe& recipe() const { return recipe_; }
  const std::string& said() const { return said_; }
  std::vector<std::string> names() const {
    const std::string directory = root_ / "run/trace";
    if (!files_->stat(directory)) return {};
    return files_->list(directory);
  }
  std::string path(const std::string& name) const { return root_ / ("run/trace/" + name); }
  Json file(const std::string& name) const { return Json::parse(read_text(*files_, path(name))); }

 private:
  const std::unique_ptr<FileSystem> files_ = posix_files();
  const TemporaryDirectory root_;
  Recipe recipe_;
  std::string said_;
};

std::string name_of_file(int rank) {
  return fmt::format("steps-2-4-rank-{}.json", rank);
}

std::vector<std::string> names_of_files() {
  std::vector<std::string> names;
  for (int rank = 0; rank < kNumRanks; ++rank) names.push_back(name_of_file(rank));
  return names;
}

const TracedRun& traced_run() {
  static const TracedRun kRun({"train.steps=5", "train.trace_steps=3", "train.eval_every=0"});
  return kRun;
}

std::vector<Json> events_of(const Json& file, const std::string& phase,
                            const std::string& category = "") {
  std::vector<Json> events;
  for (const Json& e : file.at("traceEvents"))
    if (e.at("ph") == phase && (category.empty() || e.value("cat", "") == category))
      events.push_back(e);
  return events;
}

int64_t nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1e3);
}

TEST(TraceFile, IsWrittenByEveryRankAfterTheFirstStep) {
  const TracedRun& run = traced_run();
  EXPECT_EQ(run.names(), names_of_files());
  EXPECT_NE(run.said().find("trace of steps 2 to 4: "), std::string::npos) << run.said();
  EXPECT_EQ(run.said().find("lacks"), std::string::npos) << run.said();
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json about = run.file(name_of_file(rank)).at("otherData");
    EXPECT_EQ(about.at("format"), "ashlar-trace-2");
    EXPECT_EQ(about.at("rank"), rank);
    EXPECT_EQ(about.at("ranks"), kNumRanks);
    EXPECT_EQ(about.at("first_step"), 2);
    EXPECT_EQ(about.at("last_step"), 4);
    EXPECT_EQ(about.at("dropped_events"), 0);
  }
}

// Slices of a thread lie one after the other or one in another, and those of steps hold all.
TEST(TraceFile, SlicesNest) {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json file = traced_run().file(name_of_file(rank));
    std::map<int, std::vector<std::pair<int64_t, int64_t>>> threads;  // start, -end
    for (const Json& e : events_of(file, "X")) {
      EXPECT_EQ(e.at("pid"), rank);
      const int64_t start = nanoseconds(e.at("ts")), duration = nanoseconds(e.at("dur"));
      EXPECT_GE(start, 0);
      EXPECT_GE(duration, 0);
      threads[e.at("tid")].push_back({start, -(start + duration)});
    }
    EXPECT_EQ(threads.size(), 4u);  // step, compute, lanes world and sums
    for (auto& [thread, slices] : threads) {
      EXPECT_TRUE(std::is_sorted(slices.begin(), slices.end())) << "an outer one stands first";
      std::vector<int64_t> ends;
      for (const auto& [start, minus_end] : slices) {
        while (!ends.empty() && ends.back() <= start) ends.pop_back();
        if (!ends.empty()) {
          ASSERT_LE(-minus_end, ends.back()) << "thread " << thread << " at " << start;
        }
        ends.push_back(-minus_end);
      }
    }
    std::set<std::string> names;
    for (const Json& e : events_of(file, "X"))
      if (e.at("tid") == 1) names.insert(e.at("name"));
    for (const char* name :
         {"step 2", "step 3", "step 4", "micro-batch 0", "micro-batch 3", "forward", "backward",
          "block 0", "mixer", "feed_forward", "optimizer"})
      EXPECT_TRUE(names.contains(name)) << name;
    EXPECT_FALSE(names.contains("step 1") || names.contains("step 5"));
  }
}

// Steps and the gaps between them cover the time without holes.
TEST(TraceFile, HoldsStepsAndWhatLiesBetweenThem) {
  const Json file = traced_run().file(name_of_file(1));
  const std::vector<Json> steps = events_of(file, "X", "step");
  const std::vector<Json> between = events_of(file, "X", "between");
  ASSERT_EQ(steps.size(), 3u);
  ASSERT_EQ(between.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(steps[i].at("args").at("step"), 2 + i);
    EXPECT_GE(steps[i].at("args").at("loader_wait_us"), 0.0);
    EXPECT_EQ(between[i].at("args").at("next_step"), 2 + i);
    const auto end = [](const Json& e) {
      return nanoseconds(e.at("ts")) + nanoseconds(e.at("dur"));
    };
    EXPECT_EQ(end(between[i]), nanoseconds(steps[i].at("ts")));
    if (i > 0) {
      EXPECT_EQ(end(steps[i - 1]), nanoseconds(between[i].at("ts")));
    }
  }
}

// Every group that a post names is listed once, with its members and its lane.
TEST(TraceFile, ListsGroups) {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json file = traced_run().file(name_of_file(rank));
    std::map<std::string, Json> groups;
    for (const Json& g : file.at("otherData").at("groups")) {
      EXPECT_TRUE(groups.emplace(g.at("name"), g).second) << g;
      EXPECT_EQ(std::ranges::count(g.at("ranks").get<std::vector<int>>(), rank), 1) << g;
    }
    EXPECT_EQ(groups.at("tp").at("ranks"), (rank < 2 ? Json{0, 1} : Json{2, 3}));
    EXPECT_EQ(groups.at("tp").at("lane"), "sums");
    EXPECT_EQ(groups.at("data").at("ranks"), (rank % 2 == 0 ? Json{0, 2} : Json{1, 3}));
    for (const Json& e : events_of(file, "X", "post"))
      EXPECT_EQ(groups.at(e.at("args").at("group")).at("ranks").size(), e.at("args").at("ranks"));
  }
}

// A simulation needs more than bytes: extents of products, chunks, peers, rounds.
TEST(TraceFile, HoldsShapesChunksPeersAndRounds) {
  const Json file = traced_run().file(name_of_file(0));
  for (const Json& e : events_of(file, "X", "kernel")) {
    const std::string op = e.at("name");
    const Json& args = e.at("args");
    if (!op.starts_with("linear_")) continue;
    const auto shape = args.at("shape").get<std::vector<int64_t>>();
    EXPECT_EQ(args.at("flop"), 2 * shape[0] * shape[1] * shape[2] * shape[3]) << e;
  }
  int num_chunks = 0, num_peers = 0;
  for (const Json& e : events_of(file, "X", "post")) {
    const Json& args = e.at("args");
    int64_t sum = 0;
    if (args.contains("chunks")) {
      for (const Json& bytes : args.at("chunks")) sum += bytes.get<int64_t>();
      EXPECT_EQ(sum, args.at("bytes")) << e;
      EXPECT_EQ(args.at("chunks").size(), args.at("ranks")) << e;
      ++num_chunks;
    }
    if (args.at("collective") != "send_receive") continue;
    for (const char* way : {"sends", "receives"})
      for (const Json& m : args.value(way, Json::array())) {
        EXPECT_NE(m.at(0), 0) << e;
        EXPECT_GT(m.at(1), 0) << e;
        ++num_peers;
      }
  }
  EXPECT_GT(num_chunks, 0);
  EXPECT_GT(num_peers, 0);
  for (const Json& e : events_of(file, "X", "operation"))
    EXPECT_EQ(e.at("args").at("rounds"), e.at("args").at("collective") == "all_reduce" ? 2 : 1)
        << e;
}

// Flop of kernels, and bytes of operations, are three times what a dry run says of a step.
TEST(TraceFile, HoldsWhatThePlanCounts) {
  const TracedRun& run = traced_run();
  const DType compute = nn::resolve_precision(run.recipe().train.precision);
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const RunPlan plan = plan_run(run.recipe(), compute, kNumRanks, 1, rank);
    const Json file = run.file(name_of_file(rank));
    KernelCosts costs;
    for (const Json& e : events_of(file, "X", "kernel"))
      add(costs, {{e.at("name"), {e.at("args").at("flop"), e.at("args").at("bytes")}}});
    EXPECT_EQ(costs.size(), plan.costs.size());
    for (const auto& [op, cost] : plan.costs) {
      if (op.starts_with("attention")) continue;  // whose pairs depend on documents
      EXPECT_EQ(costs[op].flop, 3 * cost.flop) << op;
      if (op != "qk_forward" && op != "qk_backward" && !op.starts_with("conv")) {
        EXPECT_EQ(costs[op].bytes, 3 * cost.bytes) << op;
      }
    }
    std::map<std::string, comm::TrafficRow> rows;
    for (const Json& e : events_of(file, "X", "operation")) {
      const Json& args = e.at("args");
      EXPECT_EQ(args.at("ended"), true);
      comm::TrafficRow& row =
          rows[args.at("group").get<std::string>() + " " + e.at("name").get<std::string>()];
      ++row.launches;
      row.sent_bytes += args.at("sent_bytes").get<int64_t>();
      row.received_bytes += args.at("received_bytes").get<int64_t>();
    }
    for (const GroupTraffic& t : plan.traffic) {
      if (t.size == 1) continue;
      const comm::TrafficRow& row =
          rows[fmt::format("{} {} {}", t.group, name_of(t.row.op), t.row.label)];
      EXPECT_EQ(row.launches, 3 * t.row.launches) << t.row.label;
      EXPECT_EQ(row.sent_bytes, 3 * t.row.sent_bytes) << t.row.label;
      EXPECT_EQ(row.received_bytes, 3 * t.row.received_bytes) << t.row.label;
    }
  }
}

// Each arrow leads from a post to the one operation that it became, which is not before it.
TEST(TraceFile, ArrowsLeadFromPostsToOperations) {
  std::set<int64_t> all;
  size_t count = 0;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json file = traced_run().file(name_of_file(rank));
    const std::vector<Json> starts = events_of(file, "s"), ends = events_of(file, "f");
    EXPECT_EQ(starts.size(), ends.size());
    EXPECT_EQ(ends.size(), events_of(file, "X", "operation").size());
    std::map<int64_t, int64_t> posted;
    for (const Json& s : starts) posted[s.at("id")] = nanoseconds(s.at("ts"));
    for (const Json& f : ends) {
      ASSERT_TRUE(posted.contains(f.at("id")));
      EXPECT_LE(posted[f.at("id")], nanoseconds(f.at("ts")));
      all.insert(f.at("id").get<int64_t>());
    }
    count += starts.size();
  }
  EXPECT_EQ(all.size(), count);
}

// Ranks have one clock: nobody is done with an all_reduce before all have begun it.
TEST(TraceFile, RanksAgreeOnTheTime) {
  struct Span {
    int64_t last_begin = 0, first_end = INT64_MAX;
    int members = 0;
  };
  std::map<std::tuple<std::string, int, int64_t>, Span> sums;  // group, which one, number
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json file = traced_run().file(name_of_file(rank));
    for (const Json& e : events_of(file, "X", "operation")) {
      const Json& args = e.at("args");
      if (args.at("collective") != "all_reduce") continue;
      const std::string group = args.at("group");
      const int which = group == "tp" ? rank / 2 : group == "data" ? rank % 2 : 0;
      Span& span = sums[{group, which, args.at("number")}];
      const int64_t start = nanoseconds(e.at("ts"));
      span.last_begin = std::max(span.last_begin, start);
      span.first_end = std::min(span.first_end, start + nanoseconds(e.at("dur")));
      ++span.members;
    }
  }
  EXPECT_GT(sums.size(), 100u);
  for (const auto& [key, span] : sums) {
    EXPECT_EQ(span.members, std::get<0>(key) == "model" ? 4 : 2);
    EXPECT_LE(span.last_begin, span.first_end) << std::get<0>(key) << " " << std::get<2>(key);
  }
}

TEST(TraceFile, SaysWhenTheRunEndsTooEarly) {
  const TracedRun shorter({"train.steps=3", "train.trace_steps=5", "train.eval_every=1"});
  EXPECT_NE(shorter.said().find("train.trace_steps is 5 but the run ends after 2 that could be"),
            std::string::npos)
      << shorter.said();
  EXPECT_EQ(shorter.names().size(), size_t(kNumRanks));
  EXPECT_EQ(shorter.names()[0], "steps-2-3-rank-0.json");
  const TracedRun one({"train.steps=1", "train.trace_steps=5"});
  EXPECT_NE(one.said().find("no trace is written"), std::string::npos) << one.said();
  EXPECT_TRUE(one.names().empty());
  const TracedRun none({"train.steps=3"});
  EXPECT_EQ(none.said().find("trace"), std::string::npos) << none.said();
  EXPECT_TRUE(none.names().empty());
}

// Clocks that are a thousand seconds apart, as machines' are.
TEST(TraceFile, FindsHowFarClocksAreApart) {
  testing_support::on_ranks(3, [](comm::Group& ranks, Allocator&) {
    const double ahead = 1000.0 * ranks.rank();
    const double found = clock_ahead_s(ranks, [&] { return Trace::now_s() + ahead; });
    EXPECT_NEAR(found, ahead, 5.0);  // ranks may be held up between barrier and clock
  });
}

// Standard output of a program, and its exit code.
std::pair<int, std::string> output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(TraceFile, OpensInPerfettosTraceProcessor) {
  const TracedRun& run = traced_run();
  std::string command = "python3 " ASHLAR_FIXTURES "/../train/query_trace.py";
  for (int rank = 0; rank < kNumRanks; ++rank) command += " '" + run.path(name_of_file(rank)) + "'";
  const auto [code, text] = output_of(command + " 2>/dev/null");
  if (code == 127) GTEST_SKIP() << "needs python3 with the package perfetto (PyPI): no python3";
  if (code == 77) GTEST_SKIP() << "needs python3 with the package perfetto (PyPI): " << text;
  ASSERT_EQ(code, 0) << text;
  const Json found = Json::parse(text);
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Json& f = found[size_t(rank)];
    const Json file = run.file(name_of_file(rank));
    EXPECT_EQ(f.at("process"), fmt::format("rank {}", rank));
    for (const char* thread : {"step", "compute", "lane world", "lane sums"})
      EXPECT_NE(std::find(f.at("threads").begin(), f.at("threads").end(), thread),
                f.at("threads").end())
          << thread;
    int64_t flop = 0;
    for (const Json& e : events_of(file, "X", "kernel"))
      flop += e.at("args").at("flop").get<int64_t>();
    for (const char* category : {"kernel", "post", "wait", "operation"})
      EXPECT_EQ(f.at("slices").at(category), events_of(file, "X", category).size()) << category;
    EXPECT_EQ(f.at("flop"), flop);
    EXPECT_EQ(f.at("flows"), events_of(file, "s").size());
    EXPECT_EQ(f.at("errors"), 0);
  }
}

}  // namespace
}  // namespace ashlar::train
