// Layouts of a run on fewer nodes: what the planner chooses is held against the rules of recipes
// and against dry runs of all ranks.
#include "ashlar/launch/layouts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ashlar/core/files.h"
#include "ashlar/launch/leader.h"
#include "ashlar/launch/moments.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/read_recipe.h"
#include "tests/plan/small_machine.h"
#include "tests/support/forwarding_files.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::TemporaryDirectory;
using Keys = std::vector<std::string>;

// Profile with laws of all curves, so that groups of any size have a time.
plan::MachineFile machine_for_layouts() {
  std::string text = plan::machine_text();
  const std::string last = "[1048576, 200, 250, 300]";
  for (size_t at = 0; (at = text.find(last, at)) != std::string::npos; at += 2 * last.size())
    text.insert(at, "[262144, 60, 70, 80], ");
  return {machine::parse_profile(text, "small.toml"), {}};
}

LayoutQuestion question_of(const Keys& keys, int nodes, int ranks_per_node,
                           int64_t node_bytes = int64_t{1} << 34) {
  return {plan::tiny_recipe(keys), DType::kF32, machine_for_layouts(), nodes,
          ranks_per_node,          node_bytes};
}

Log& silent() {
  static Log log([](std::string_view) {});
  return log;
}

// Whether any layout of so many ranks is legal, by trying them all.
bool any_is_legal(const Keys& keys, int num_ranks) {
  for (const int64_t pp : {1, 2})
    for (int64_t cp = 1; cp <= num_ranks; ++cp)
      for (int64_t tsp = 1; tsp <= num_ranks; ++tsp)
        for (const int64_t tp : {1, 2, 4}) {
          Recipe recipe = plan::tiny_recipe(keys);
          recipe.parallel = {.cp = cp, .tp = tp, .pp = pp, .tsp = tsp};
          recipe.train.micro_batch = 1;
          try {
            validate(recipe);
            resolve_parallel(recipe, num_ranks);
            return true;
          } catch (const Error&) {
          }
        }
  return false;
}

void expect_legal(const Keys& run_keys, const LayoutQuestion& question,
                  const LaunchLayout& layout) {
  Keys keys = run_keys;
  keys.insert(keys.end(), layout.keys.begin(), layout.keys.end());
  const Recipe recipe = plan::tiny_recipe(keys);
  const int num_ranks = layout.nodes * layout.ranks_per_node;
  const ParallelSpec parallel = resolve_parallel(recipe, num_ranks);
  EXPECT_EQ(mesh_text(parallel), layout.mesh);
  EXPECT_EQ(recipe.train.global_batch, question.recipe.train.global_batch);
  EXPECT_EQ(recipe.model, question.recipe.model);
  EXPECT_EQ(recipe.data, question.recipe.data);
  EXPECT_EQ(recipe.optim, question.recipe.optim);
  int64_t fullest = 0;
  for (int rank = 0; rank < num_ranks; ++rank)
    fullest = std::max(
        fullest, train::plan_run(recipe, DType::kF32, num_ranks, 0, rank).memory.total.peak_bytes);
  EXPECT_LE(double(layout.rank_bytes), double(fullest));
  EXPECT_GE(double(layout.rank_bytes), 0.99 * double(fullest)) << "the first and last ranks alone";
  EXPECT_LE(fullest * layout.ranks_per_node, question.node_bytes);
  EXPECT_GT(layout.step_s, 0);
}

TEST(LaunchLayouts, AreLegalAndOfAsManyRanksAsPossible) {
  const Keys with_all_nodes = {"parallel.dp=2", "parallel.cp=2"};
  const LayoutQuestion question = question_of(with_all_nodes, 4, 1);
  for (int nodes = 3; nodes >= 1; --nodes) {
    const std::optional<LaunchLayout> layout = layout_on(question, nodes, silent());
    ASSERT_TRUE(layout);
    EXPECT_EQ(layout->nodes, nodes == 3 ? 2 : nodes) << "three ranks cannot share a batch of four";
    expect_legal(with_all_nodes, question, *layout);
  }
  EXPECT_TRUE(any_is_legal({"parallel.dp=0"}, 2));
  EXPECT_FALSE(any_is_legal({"parallel.dp=0"}, 3));
}

TEST(LaunchLayouts, LeaveRanksOutOfEveryNode) {
  const LaunchLayout layout = *layout_on(question_of({}, 2, 3), 1, silent());
  EXPECT_EQ(layout.nodes, 1);
  EXPECT_EQ(layout.ranks_per_node, 2) << "three ranks cannot share a batch of four";
}

TEST(LaunchLayouts, FitIntoTheMemoryOfANode) {
  const std::optional<LaunchLayout> roomy = layout_on(question_of({}, 2, 1), 1, silent());
  ASSERT_TRUE(roomy);
  const LayoutQuestion narrow = question_of({}, 2, 1, roomy->rank_bytes - 1);
  const std::optional<LaunchLayout> small = layout_on(narrow, 1, silent());
  ASSERT_TRUE(small);
  EXPECT_LT(small->rank_bytes, roomy->rank_bytes);
  expect_legal({}, narrow, *small);
  EXPECT_FALSE(layout_on(question_of({}, 2, 1, 1 << 20), 1, silent()));
}

TEST(LaunchLayouts, AreKeptForTheSameQuestion) {
  const auto files = memory_files();
  const LayoutQuestion question = question_of({"train.micro_batch=1"}, 4, 1);
  find_layouts(question, *files, "layouts.json", silent());
  const LaunchLayouts layouts = read_layouts(*files, "layouts.json", question.id());
  ASSERT_EQ(layouts.all.size(), 2u) << "of all nodes, and of two for two and three";
  EXPECT_EQ(layouts.all[0], own_layout(question, silent()));
  EXPECT_TRUE(layouts.all[0].keys.empty());
  EXPECT_EQ(layouts.on(7), &layouts.all[0]);
  EXPECT_EQ(layouts.on(3), &layouts.all[1]);
  EXPECT_EQ(*layouts.on(2), *layout_on(question, 3, silent()));
  EXPECT_EQ(layouts.on(1), nullptr);
  LayoutQuestion other = question;
  other.recipe.train.global_batch = 8;
  EXPECT_TRUE(read_layouts(*files, "layouts.json", other.id()).all.empty());
  write_text(*files, "layouts.json", "{\"v\":1,\"question\":");
  EXPECT_TRUE(read_layouts(*files, "layouts.json", question.id()).all.empty());
}

class CountedOpens : public testing_support::ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    num_layouts += path.ends_with("layouts.json");
    return inner_.open(path, links);
  }
  int num_layouts = 0;
};

// The shared file system may stand while a run trains, and then no agent would be heard.
TEST(Leader, ReadsLayoutsNoMoreOnceTheyAreWhole) {
  const TemporaryDirectory directory;
  const auto posix = posix_files();
  CountedOpens files(*posix);
  Log log([](std::string_view) {});
  EpochFiles(files, directory.path()).claim(1, "17");
  Leader leader({.directory = directory.path(), .job = "17", .layouts = "asked"}, files, log);
  const std::string path = join(directory.path(), "layouts.json");
  write_text(files, path, R"({"v":1,"question":"asked","whole":false,"layouts":[]})");
  const double begin = now_s();
  for (const double later_s : {0, 6, 12}) leader.missing(begin + later_s);
  EXPECT_EQ(files.num_layouts, 3) << "the search goes on";
  write_text(files, path, R"({"v":1,"question":"asked","whole":true,"layouts":[]})");
  for (const double later_s : {18, 24, 30}) leader.missing(begin + later_s);
  EXPECT_EQ(files.num_layouts, 4);
}

}  // namespace
}  // namespace ashlar::launch
