// Searches over small spaces against brute force; reasons, memory margins, exit conditions.
#include "ashlar/plan/search.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/plan/mesh.h"
#include "ashlar/plan/search_stages.h"
#include "tests/plan/small_machine.h"

namespace ashlar::plan {
namespace {

// As small_machine, with a law for every curve and memory for a node of 4 ranks.
MachineFile machine_to_search(bool mesh = false) {
  std::string text = machine_text();
  const std::string last = "[1048576, 200, 250, 300]";
  for (size_t at = 0; (at = text.find(last, at)) != std::string::npos; at += 2 * last.size())
    text.insert(at, "[262144, 60, 70, 80], ");
  MachineFile machine{machine::parse_profile(text, "small.toml"), {}};
  const auto set = [&](const char* key, double value, const char* unit) {
    machine.profile.set(key, {value, unit, machine::Origin::kAssumed, "a guess", "", 0});
  };
  if (!mesh) {
    set("node.memory", 400e6, "B");
    return machine;
  }
  machine.profile.links = machine::NodeLinks::kMesh;
  set("node.devices", 4, "1");
  set("device.memory", 1e9, "B");
  set("topology.link", 50, "GB/s");
  set("topology.link_latency", 5, "us");
  set("topology.nic", 50, "GB/s");
  set("topology.nic_latency", 10, "us");
  return machine;
}

SearchOptions small_options(std::vector<std::string> fixed = {}) {
  SearchOptions options;
  options.num_ranks = 4;
  options.fixed = std::move(fixed);
  options.num_simulated = 3;
  return options;
}

SearchResult search_tiny(const MachineFile& machine, const SearchOptions& options) {
  Log log([](std::string_view) {});
  return search(tiny_recipe(options.fixed), DType::kF32, machine, options, log);
}

const std::vector<std::string> kFewKeys = {"parallel.pp=1",
                                           "parallel.ep=1",
                                           "parallel.tsp=1",
                                           "parallel.muon=auto",
                                           "train.recompute=false",
                                           "parallel.sequence_parallel=false",
                                           "train.micro_batch=1",
                                           "parallel.bucket_bytes=33554432",
                                           "parallel.zero_layout=contiguous"};

TEST(Search, LooksAtLayoutsOfAdapters) {
  SearchOptions options = small_options(kFewKeys);
  options.fixed.insert(options.fixed.end(),
                       {"init.model=none", "lora.rank=2", "lora.targets=attention,experts"});
  options.num_simulated = 2;
  Log log([](std::string_view) {});
  const SearchResult result =
      search(load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", options.fixed), DType::kF32,
             machine_to_search(), options, log);
  ASSERT_FALSE(result.best.empty());
  const SearchResult all = search_tiny(machine_to_search(), small_options(kFewKeys));
  EXPECT_LT(result.flop_a_token, all.flop_a_token);
  const auto moments = [](const SearchedLayout& layout) {
    return layout.memory->tag_bytes[size_t(Tag::kOptimizer)];
  };
  EXPECT_LT(moments(result.best[0]), moments(all.best[0]) / 2);
  EXPECT_EQ(result.num_layouts, all.num_layouts);
}

TEST(Search, FindsWhatSimulatingEveryLayoutFinds) {
  const MachineFile machine = machine_to_search();
  std::vector<std::string> few = kFewKeys;
  few.push_back("parallel.cp_exchange=all_gather");
  SearchOptions options = small_options(few);
  options.num_simulated = 1000;  // so the formulas decide nothing
  const SearchResult all = search_tiny(machine, options);
  double best_s = 1e9;
  Log log([](std::string_view) {});
  int legal = 0;
  for (const char* zero : {"0", "1", "2", "3"})
    for (const int cp : {1, 2, 4})
      for (const int tp : {1, 2, 4}) {
        std::vector<std::string> keys = few;
        keys.insert(keys.end(),
                    {fmt::format("parallel.zero={}", zero), fmt::format("parallel.cp={}", cp),
                     fmt::format("parallel.tp={}", tp)});
        try {
          const sim::RankPrograms programs = programs_of(tiny_recipe(keys), DType::kF32, 4, log);
          best_s = std::min(best_s, simulate_step(programs, machine, {}).step_s);
          ++legal;
        } catch (const Error&) {  // not legal
        }
      }
  EXPECT_GT(legal, 10);
  EXPECT_EQ(all.best.at(0).step_s(), best_s);
}

TEST(Search, GivesTheSameAnswerTwice) {
  const MachineFile machine = machine_to_search();
  const SearchOptions options = small_options(kFewKeys);
  const Recipe base = tiny_recipe(kFewKeys);
  const std::string once = to_json(search_tiny(machine, options), base, machine, options);
  EXPECT_EQ(once, to_json(search_tiny(machine, options), base, machine, options));
}

// An estimate for tp and pp, and which batch: torchtitan's pull requests 410 and 425.
TEST(Search, W10GoalsAndNeighboursWithTheReasonEachLoses) {
  const MachineFile machine = machine_to_search();
  const SearchOptions options = small_options();
  const SearchResult result = search_tiny(machine, options);
  ASSERT_FALSE(result.best.empty());
  ASSERT_GT(result.neighbours.size(), 10u);
  std::set<std::string> keys;
  for (const Neighbour& n : result.neighbours) {
    EXPECT_FALSE(n.reason.empty()) << n.key;
    keys.insert(n.key.substr(0, n.key.find('=')));
  }
  for (const char* key : {"parallel.tp", "parallel.pp", "train.micro_batch", "parallel.zero"})
    EXPECT_TRUE(keys.contains(key)) << key;
  const Json json =
      parse_json(to_json(result, tiny_recipe({}), machine, options), "json", ErrorKind::kCorrupt);
  EXPECT_EQ(json["format"], "ashlar-search-1");
  EXPECT_EQ(json["mfu_convention"], "exact-causal");
  EXPECT_EQ(json["counts"]["layouts"].get<int64_t>(),
            json["counts"]["refused_by_rules"].get<int64_t>() +
                json["counts"]["refused_for_links"].get<int64_t>() +
                json["counts"]["too_large_by_formulas"].get<int64_t>() +
                json["counts"]["timed_by_formulas"].get<int64_t>());
  for (const Goal goal : {Goal::kMaxSequence, Goal::kMaxMicroBatch, Goal::kMinMemory}) {
    SearchOptions other = small_options({"parallel.pp=1", "parallel.tsp=1", "parallel.ep=1"});
    other.goal = goal;
    other.num_simulated = 2;
    const SearchResult found = search_tiny(machine, other);
    ASSERT_FALSE(found.best.empty()) << kGoalNames[size_t(goal)];
    EXPECT_LE(found.best[0].memory->total_bytes, found.memory_bytes);
    if (goal == Goal::kMaxMicroBatch) {
      EXPECT_GE(found.best[0].micro_batch, result.best[0].micro_batch);
    }
    if (goal == Goal::kMinMemory) {
      EXPECT_LE(found.best[0].memory->total_bytes, result.best[0].memory->total_bytes);
    }
  }
}

// Bubble and peak of every class of ranks, of any layout (Primus's pull requests 273 and 362).
TEST(Search, W11BubbleAndPeakOfEveryRankClass) {
  const MachineFile machine = machine_to_search();
  const SearchOptions options = small_options({"parallel.pp=2"});
  const SearchResult result = search_tiny(machine, options);
  Log log([](std::string_view) {});
  ASSERT_FALSE(result.best.empty());
  std::vector<std::string> keys = {"parallel.pp=2"};
  std::string text = result.best[0].keys;
  for (size_t at = 0; !text.empty(); text = at == std::string::npos ? "" : text.substr(at + 1)) {
    at = text.find(' ');
    keys.push_back(text.substr(0, at));
  }
  const MeshPlan plan = plan_mesh(tiny_recipe(keys), DType::kF32, 4);
  ASSERT_EQ(result.classes.size(), plan.classes.size());
  int64_t largest = 0;
  for (size_t c = 0; c < plan.classes.size(); ++c) {
    EXPECT_EQ(result.classes[c].ranks, plan.classes[c].ranks);
    EXPECT_EQ(result.classes[c].peak_bytes, plan.classes[c].plan.memory.total.peak_bytes);
    EXPECT_GT(result.classes[c].share.step_s, 0);
    EXPECT_GT(result.classes[c].share.waiting_s, 0);  // a pipeline has a bubble
    largest = std::max(largest, result.classes[c].peak_bytes);
  }
  EXPECT_EQ(result.best[0].memory->total_bytes, largest);
}

// No dry run would admit a layout that the closed formulas cut.
TEST(Search, FormulasNeverCutWhatADryRunAdmits) {
  const MachineFile machine = machine_to_search();
  const SearchOptions options = small_options();
  Log log([](std::string_view) {});
  SearchStages stages(tiny_recipe({}), DType::kF32, machine, options, log);
  int seen = 0, tried = 0;
  stages.space().each_frame([&](const LayoutChoice& choice) {
    SearchStages::Judged judged = stages.judge(choice);
    if (!judged.layout || ++seen % 13 != 0) return;
    ++tried;
    stages.fits(*judged.layout);
    EXPECT_LE(kCertainShare * judged.layout->formula_bytes,
              double(judged.layout->memory->total_bytes))
        << judged.layout->keys;
  });
  EXPECT_GT(tried, 40);
}

TEST(Search, NothingFitsNamesTheNearestMiss) {
  SearchOptions options = small_options(kFewKeys);
  options.memory_bytes = 1 << 20;
  const MachineFile machine = machine_to_search();
  const SearchResult result = search_tiny(machine, options);
  EXPECT_TRUE(result.best.empty());
  ASSERT_TRUE(result.nearest_miss);
  EXPECT_GT(result.nearest_miss->memory->total_bytes, options.memory_bytes);
  const std::string text = describe(result, tiny_recipe(kFewKeys), machine, options);
  EXPECT_NE(text.find("no layout fits in 1.00 MiB (--memory)"), std::string::npos) << text;
}

TEST(Search, NoPlanUsesAPartOfAMeshUnlessForced) {
  const MachineFile machine = machine_to_search(/*mesh=*/true);
  const SearchResult result = search_tiny(machine, small_options());
  ASSERT_FALSE(result.best.empty());
  for (const SearchedLayout& layout : result.best)
    for (const int64_t degree :
         {layout.parallel.tp, layout.parallel.cp, layout.parallel.tsp, layout.parallel.ep})
      EXPECT_TRUE(degree == 1 || degree == 4) << layout.keys;
  bool cost = false;
  for (const Neighbour& n : result.neighbours)
    cost = cost ||
           (n.why == Neighbour::Why::kLinks && n.reason.find("forced it is") != std::string::npos);
  EXPECT_TRUE(cost);
  const SearchResult forced = search_tiny(machine, small_options({"parallel.tp=2"}));
  ASSERT_FALSE(forced.best.empty());
  EXPECT_EQ(forced.best[0].parallel.tp, 2);
}

// The usual choice: what fits with ZeRO 1 trains in pure data parallelism with ZeRO 1.  In a large
// world that takes large buckets, and sums whose hops do not grow with the ranks.
TEST(Search, WhatFitsWithZero1TrainsInPureDataParallelism) {
  const auto files = posix_files();
  const MachineFile machine = read_machine(*files, "mi300x-pollara");
  Log log([](std::string_view) {});
  for (const int num_ranks : {8, 1024}) {
    SearchOptions options = small_options({"parallel.cp=1", "parallel.tsp=1", "parallel.muon=auto",
                                           "parallel.zero_layout=contiguous"});
    options.num_ranks = num_ranks;
    options.num_simulated = 6;
    std::vector<std::string> keys = options.fixed;
    keys.push_back(fmt::format("train.global_batch={}", 4 * num_ranks));
    const Recipe recipe =
        train::read_recipe(*files, ASHLAR_FIXTURES "/../../recipes/llama3-8b.toml", keys);
    const SearchResult result = search(recipe, DType::kBF16, machine, options, log);
    ASSERT_FALSE(result.best.empty());
    const ParallelSpec& best = result.best[0].parallel;
    EXPECT_EQ(best.dp, num_ranks) << result.best[0].keys;
    EXPECT_EQ(best.zero, 1) << result.best[0].keys;
    if (num_ranks > kMostReplayedRanks) {
      EXPECT_EQ(best.bucket_bytes, int64_t{1} << 30);
    }
  }
}

// The list of layouts to simulate does not fill with variants of one of them.
TEST(Search, LayoutsThatDifferInDetailsAloneAreSimulatedOnce) {
  const MachineFile machine = machine_to_search();
  SearchOptions options = small_options();
  options.num_simulated = options.top = 8;
  const SearchResult result = search_tiny(machine, options);
  const SearchSpace space(tiny_recipe({}), 4, Goal::kTime, {}, {});
  std::set<std::string> frames;
  for (const SearchedLayout& layout : result.best) {
    std::string frame;
    for (const std::string& key : split(layout.keys, ' '))
      if (!key.empty() && !space.is_detail(space.index_of(key.substr(0, key.find('=')))))
        frame += key + ' ';
    EXPECT_TRUE(frames.insert(frame).second) << layout.keys;
  }
  EXPECT_EQ(frames.size(), 8u);
}

}  // namespace
}  // namespace ashlar::plan
