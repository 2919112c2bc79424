// The loop around the steps: what a step costs beside the trainer, and what its rows say.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/text.h"
#include "ashlar/train/start.h"
#include "tests/support/malloc_count.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

// Calls of malloc between the last two console lines, which are `log_every` steps apart.
int64_t mallocs_between_lines(int64_t log_every) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  const Recipe recipe = tiny_run(*files, root,
                                 {fmt::format("train.log_every={}", log_every), "train.steps=60",
                                  "train.eval_every=0", "checkpoint.every=-1", "health.window=8"});
  std::vector<int64_t> at_line;
  at_line.reserve(100);
  Log log([&](std::string_view line) {
    if (line.starts_with("step ")) at_line.push_back(ashlar::testing_support::num_mallocs());
  });
  EXPECT_EQ(start_run(recipe, *files, log), Outcome::kDone);
  EXPECT_GE(at_line.size(), 3u);
  return at_line[at_line.size() - 1] - at_line[at_line.size() - 2];
}

TEST(Loop, AStepWithoutALineAllocatesNothing) {
  if (!ashlar::testing_support::counts_mallocs())
    GTEST_SKIP() << "needs a build without sanitizers: they own malloc";
  const int64_t of_a_line = mallocs_between_lines(1);
  EXPECT_GT(of_a_line, 0);
  EXPECT_EQ(mallocs_between_lines(20), of_a_line);
}

// A synchronous save blocks for as long as it lasts: the next step's row says so, and no other.
TEST(Loop, TheNextRowSaysHowLongASaveBlocked) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  Log log([](std::string_view) {});
  start_run(tiny_run(*files, root,
                     {"train.steps=5", "train.eval_every=0", "checkpoint.every=2",
                      "checkpoint.async=false"}),
            *files, log);
  std::vector<double> blocked;
  double saving = 0.0;
  for (const nlohmann::json& row : rows_of(*files, root)) {
    if (!row.contains("event")) blocked.push_back(row.at("checkpoint_blocked_s"));
    if (row.value("event", "") == "checkpoint" && row.at("step") == 2) saving = row.at("total_s");
  }
  ASSERT_EQ(blocked.size(), 5u);
  EXPECT_GT(saving, 0.0);
  EXPECT_GE(blocked[2], saving);
  for (const size_t before : {0, 1, 3}) EXPECT_LT(blocked[before], saving);
}

// Whatever a power cut leaves, no step is there whose rows are not.
TEST(Loop, RowsAreOnDiskBeforeTheirStepIsCommitted) {
  const TemporaryDirectory root;
  const auto disk = posix_files();
  const std::string metrics = root / "run/metrics.jsonl";
  std::vector<int64_t> steps_at_commit;
  std::string synced;  // what the last sync made durable
  const auto files =
      faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
        if (operation == "sync" && path == metrics) synced = read_text(*disk, metrics);
        const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
        if (operation == "rename_new" && name.starts_with(".tmp-step-")) {
          const std::vector<std::string> lines = split(synced, '\n');
          steps_at_commit.push_back(
              std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) { return line.starts_with("{\"step\""); }));
        }
        return Fault::kNone;
      });
  Log log([](std::string_view) {});
  start_run(tiny_run(*disk, root,
                     {"train.steps=5", "train.eval_every=0", "checkpoint.every=2",
                      "checkpoint.async=false"}),
            *files, log);
  EXPECT_EQ(steps_at_commit, (std::vector<int64_t>{2, 4, 5}));
}

// The rows of a run with expert loads, by step, and max_load of its step rows.
struct Loads {
  std::map<int64_t, nlohmann::json> blocks;
  std::map<int64_t, double> max_load;
};

Loads loads_of(int num_ranks, std::vector<std::string> keys) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  keys.insert(keys.begin(), {"train.steps=5", "train.expert_loads_every=2", "train.precision=fp64",
                             "train.eval_every=0", "checkpoint.every=-1"});
  Log log([](std::string_view) {});
  start_run(tiny_run(*files, root, keys), *files, log, {num_ranks, {}});
  Loads loads;
  for (const nlohmann::json& row : rows_of(*files, root)) {
    if (row.value("event", "") == "expert_loads") loads.blocks[row.at("step")] = row.at("blocks");
    if (!row.contains("event")) loads.max_load[row.at("step")] = row.at("max_load");
  }
  return loads;
}

// Rows count the choices of all ranks in all blocks, whatever each rank holds.
TEST(Loop, RowsCountTheChoicesOfEveryExpertOnAnyLayout) {
  const Loads one = loads_of(1, {});
  ASSERT_EQ(one.blocks.size(), 4u) << "steps 1, 2, 4 and the last";
  for (const auto& [step, blocks] : one.blocks) {
    ASSERT_EQ(blocks.size(), 2u);
    double largest = 0;
    for (const auto& counts : blocks) {
      ASSERT_EQ(counts.size(), 4u);
      int64_t sum = 0, most = 0;
      for (const int64_t count : counts) sum += count, most = std::max(most, count);
      EXPECT_LE(sum, 4 * 32);
      largest = std::max(largest, 4.0 * double(most) / double(sum));
    }
    EXPECT_DOUBLE_EQ(largest, one.max_load.at(step)) << step;
  }
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"parallel.ep=2"}, {"parallel.pp=2"}, {"parallel.tp=2"}})
    EXPECT_EQ(loads_of(2, keys).blocks, one.blocks) << keys[0];
  EXPECT_TRUE(loads_of(1, {"train.expert_loads_every=0"}).blocks.empty());
}

TEST(Loop, RowsSayWhatTheRunIsOn) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  Log log([](std::string_view) {});
  start_run(tiny_run(*files, root, {"train.steps=2", "train.eval_every=0", "checkpoint.every=-1"}),
            *files, log);
  const std::vector<nlohmann::json> rows = rows_of(*files, root);
  const nlohmann::json& start = rows.at(0);
  EXPECT_EQ(start.at("event"), "start");
  for (const char* text : {"isa", "cpu", "host"}) EXPECT_NE(start.at(text), "") << text;
  for (const char* number : {"cpus", "memory_bytes", "ranks", "threads"})
    EXPECT_GT(start.at(number), 0) << number;
  int64_t by_tag = 0, peak = 0;
  for (const nlohmann::json& row : rows) {
    if (row.value("event", "") == "memory") {
      EXPECT_EQ(row.at("step"), 1);
      for (const auto& [tag, bytes] : row.at("tags").items()) by_tag += bytes.get<int64_t>();
    }
    if (!row.contains("event")) peak = row.at("memory_peak_bytes");
  }
  EXPECT_GT(peak, 0);
  EXPECT_GE(by_tag, peak);
}

TEST(Loop, RowsKeepTheTypesOfTheirColumns) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  Log log([](std::string_view) {});
  start_run(tiny_run(*files, root, {"train.steps=3", "train.eval_every=2", "checkpoint.every=-1"}),
            *files, log);
  const std::vector<nlohmann::json> rows = rows_of(*files, root);
  int steps = 0, evaluations = 0;
  for (const nlohmann::json& row : rows) {
    evaluations += row.value("event", "") == "evaluation";
    if (row.contains("event")) continue;
    EXPECT_EQ(row.at("step"), ++steps);
    EXPECT_EQ(row.size(), 20u) << row;
    for (const char* key : {"loss", "lr", "data_stall_s", "checkpoint_blocked_s", "mfu"})
      EXPECT_TRUE(row.at(key).is_number_float()) << key << " of " << row;
    for (const char* key : {"tokens", "skipped", "allocations"})
      EXPECT_TRUE(row.at(key).is_number_integer()) << key << " of " << row;
    EXPECT_EQ(row.at("applied"), true);
    EXPECT_GT(row.at("mfu"), 0);
    EXPECT_LE(row.at("mfu"), 1);
    EXPECT_EQ(row.at("mfu_convention"), "exact-causal");
  }
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(evaluations, 1);
}

TEST(Loop, SaysOnceWhatPackingDrops) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  const Recipe recipe = tiny_run(*files, root,
                                 {"train.steps=2", "train.eval_every=0", "checkpoint.every=-1",
                                  "data.packing=best_fit", "data.validation_fraction=0"});
  start_run(recipe, *files, log);
  int64_t documents = 0, tokens = 0, all = 0;
  for (const int64_t length : document_lengths()) {
    all += length;
    if (length > 33) ++documents, tokens += length;
  }
  const std::string expected = fmt::format(
      "best-fit packing drops {} documents longer than 33 tokens: {} of {} training tokens\n",
      format_thousands(documents), format_thousands(tokens), format_thousands(all));
  const size_t at = said.find(expected);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("best-fit packing", at + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace ashlar::train
