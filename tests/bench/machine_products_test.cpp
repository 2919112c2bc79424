// The products of a recipe's layouts, sweeps over shapes, and what rates must hold to be kept.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ashlar/bench/machine/product_sweeps.h"
#include "ashlar/bench/machine/recipe_products.h"
#include "ashlar/bench/machine/session.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/plan.h"
#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

Layout tiny(const std::string& keys = "", std::vector<std::string> overrides = {}) {
  if (!keys.empty()) overrides.push_back(keys);
  return {keys, load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides)};
}

// body(rig) on one rank.
void with_rig(function_ref<void(Rig& rig)> body) {
  Allocator allocator(Device::kCpu);
  Threads threads(1);
  comm::run_ranks(1, {}, allocator, [&](comm::Group& ranks) {
    Rig rig{ranks, allocator, threads, "thread", "ashlar bench products --quick", "2026-11-27"};
    rig.quick = true;
    body(rig);
  });
}

// A rig that has time for so many rows.
void allow(int64_t rows, Rig& rig) {
  rig.goes_on = [rows]() mutable { return rows-- > 0; };
}

std::string subject_of(const std::string& row) {
  return nlohmann::json::parse(row)["experiment_name"];
}

TEST(RecipeProducts, TheirFlopAreThoseOfThePlan) {
  Threads threads(1);
  const Layout layout = tiny();
  const auto list = list_products(std::span(&layout, 1), DType::kBF16, 1, threads);
  const train::RunPlan plan = train::plan_run(layout.recipe, DType::kBF16, 1, 1);
  std::map<std::string, int64_t> flop;
  for (const RecipeProduct& p : list) flop[p.call.op] += p.calls * p.call.flop;
  int products = 0;
  for (const auto& [op, cost] : plan.costs) {
    if (op.find("linear_forward") == op.npos && op.find("linear_backward") == op.npos) continue;
    EXPECT_EQ(flop[op], cost.flop) << op;
    ++products;
  }
  EXPECT_GE(products, 6);  // dense and grouped, in three directions
  for (size_t i = 1; i < list.size(); ++i)
    EXPECT_GE(list[i - 1].calls * list[i - 1].call.flop, list[i].calls * list[i].call.flop);
  for (const RecipeProduct& p : list)
    if (p.product) {
      EXPECT_EQ(p.product->op(), p.call.op);
      EXPECT_EQ(p.product->bytes(), p.call.bytes) << p.subject();
      EXPECT_EQ(p.product->flop(), double(p.call.flop)) << p.subject();
    }
}

TEST(RecipeProducts, LayoutsShareWhatTheyHaveInCommon) {
  Threads threads(1);
  const std::vector<Layout> layouts = {tiny("parallel.tp=2"), tiny("parallel.zero=1")};
  const auto both = list_products(layouts, DType::kF32, 2, threads);
  const auto first = list_products(std::span(layouts).first(1), DType::kF32, 2, threads),
             second = list_products(std::span(layouts).last(1), DType::kF32, 2, threads);
  EXPECT_LT(both.size(), first.size() + second.size());
  EXPECT_GT(both.size(), std::max(first.size(), second.size()));
  size_t shared = 0;
  for (const RecipeProduct& p : both) shared += p.layouts.size() == 2;
  EXPECT_EQ(both.size(), first.size() + second.size() - shared);
  const auto has_matrices = [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const auto& p) { return !p.product; });
  };
  EXPECT_TRUE(has_matrices(both));  // Newton-Schulz
}

TEST(RecipeProducts, TypesOfOperandsFollowFromBytes) {
  for (const DType x : {DType::kF32, DType::kBF16})
    for (const DType y : {DType::kF32, DType::kBF16})
      for (const bool own_columns : {false, true}) {
        const ProductSpec spec{Direction::kForward, DType::kBF16, x, y, 3, 30, 64, 40, own_columns};
        const train::KernelCall call{spec.op(), DType::kBF16, {3, 30, 64, 40}, 0, spec.bytes()};
        EXPECT_EQ(product_of(call), spec) << spec.op();
      }
  EXPECT_FALSE(product_of({"attention_forward", DType::kBF16, {3, 30, 64, 40}, 0, 1}));
}

TEST(MachineProducts, W6TheShapesOfTheRecipeComeFirst) {
  with_rig([](Rig& rig) {
    allow(2, rig);
    RecipeProductOptions options;
    options.layouts = {tiny()};
    options.compute = DType::kF32;
    options.only = "linear_forward F32 G 1 N 64";
    const Findings findings = measure_recipe_products(rig, options);
    ASSERT_EQ(findings.rows.size(), 2u) << findings.text;
    EXPECT_TRUE(subject_of(findings.rows[0]).starts_with("linear_forward F32 G 1 N 64"));
    EXPECT_GT(findings.num_left_out, 0);
  });
}

TEST(MachineProducts, ATextThatNoProductHoldsIsRefused) {
  with_rig([](Rig& rig) {
    RecipeProductOptions options;
    options.layouts = {tiny()};
    options.only = "convolution";
    const std::string message = testing_support::message_of(
        ErrorKind::kConfig, [&] { measure_recipe_products(rig, options); });
    EXPECT_EQ(message,
              "--only is \"convolution\"; no product of the recipe holds it; leave it out to see "
              "them all");
  });
}

// Rows that claim so many flop, at "rates" of the clock.
void claim(const Rig& rig, double work, double ceiling, Findings& findings) {
  RateTable table(rig, findings, "rows", "TFLOP/s", 1e12);
  table.limit([=] { return ceiling; }, "the peak of the registers");
  table.row("product", 64, work, [] {});
}

TEST(MachineProducts, W6ARateAboveThePeakIsNotStored) {
  with_rig([](Rig& rig) {
    Findings above, below;
    claim(rig, 1e15, 1e-3, above);
    claim(rig, 1, 1e9, below);
    EXPECT_TRUE(above.profile.rates.empty());
    ASSERT_EQ(above.judged.size(), 1u);
    EXPECT_EQ(above.judged[0].verdict, machine::Verdict::kAboveModel);
    EXPECT_NE(above.judged[0].expected.find("the peak of the registers"), std::string::npos);
    EXPECT_EQ(above.rows.size(), 1u);  // shown, though not kept
    const auto judged = judge_findings("products", above, {0.0, ""}, nullptr);
    ASSERT_EQ(judged.size(), 1u);
    EXPECT_EQ(machine::exit_code(machine::worst_of(judged), true), 0);
    EXPECT_TRUE(below.judged.empty());
    ASSERT_EQ(below.profile.rates.size(), 1u);
    EXPECT_EQ(below.profile.rates[0].points.size(), 1u);
  });
}

TEST(MachineProducts, W6AMachineThatHasBecomeFasterIsBelievedAfterASecondLook) {
  with_rig([](Rig& rig) {
    Findings findings;
    RateTable table(rig, findings, "rows", "TFLOP/s", 1e12);
    int looks = 0;
    table.limit([&] { return ++looks == 1 ? 1e-12 : 1e12; }, "the peak");
    ASSERT_TRUE(table.row("product", 64, 1e6, [] {}));
    EXPECT_TRUE(table.last_is_stored());
    EXPECT_EQ(looks, 2);
    EXPECT_TRUE(findings.judged.empty());
  });
}

TEST(MachineProducts, W6ResumeMeasuresOnlyTheRowsThatAreMissing) {
  std::vector<double> measured;
  const PartCall part{"products", [&](const Rig& rig) {
                        Findings findings;
                        RateTable table(rig, findings, "rows", "TFLOP/s", 1e12);
                        for (const double at : {1, 2, 3, 4}) {
                          bool ran = false;
                          if (!table.row("product", at, 1e9, [&] { ran = true; })) break;
                          if (ran) measured.push_back(at);
                        }
                        return findings;
                      }};
  PartCall stopped = part;
  stopped.measure = [&](const Rig& rig) {
    Rig short_rig = rig;
    allow(2, short_rig);
    return part.measure(short_rig);
  };
  Allocator allocator(Device::kCpu);
  Log log([](std::string_view) {});
  Keeping keeping;
  keeping.keep = [](const machine::Profile&) {};
  const auto run = [&](const PartCall& call) {
    comm::run_ranks(1, {}, allocator, [&](comm::Group& ranks) {
      SessionOptions options;
      options.quick = options.resume = true;
      run_session({&call, 1}, {ranks, allocator, 1, 1}, options, keeping, log);
    });
  };
  run(stopped);
  EXPECT_EQ(measured, (std::vector<double>{1, 2}));
  run(part);
  EXPECT_EQ(measured, (std::vector<double>{1, 2, 3, 4}));
  ASSERT_EQ(keeping.profile->rates.size(), 1u);
  EXPECT_EQ(keeping.profile->rates[0].points.size(), 4u);
  EXPECT_EQ(keeping.profile->rates[0].provenance.from, "ashlar bench products");
  run(part);  // whole: nothing is measured
  EXPECT_EQ(measured.size(), 4u);
}

TEST(MachineProducts, W6WarmsUpTwiceAndForTwentyMilliseconds) {
  const auto start = Clock::now();
  int calls = 0;
  warm_up([&] { ++calls; });
  EXPECT_GE(seconds_since(start), 0.02);
  EXPECT_GT(calls, 2);
  calls = 0;
  warm_up([&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  });
  EXPECT_EQ(calls, 2);
}

TEST(MachineProducts, WorkToNinetyPercentIsTheSmallestThatReachesIt) {
  EXPECT_EQ(flop_to_90({}), 0);
  const std::pair<double, double> points[] = {{0.1, 50}, {2, 91}, {1, 95}, {8, 100}, {4, 89}};
  EXPECT_EQ(flop_to_90(points), 1);
}

TEST(MachineProducts, SweepsStateTheirShapes) {
  with_rig([](Rig& rig) {
    Findings findings;
    sweep_groups(rig, DType::kF32, findings);
    sweep_tiles(rig, DType::kF32, findings);
    std::set<std::string> subjects;
    for (const machine::RateCurve& curve : findings.profile.rates) subjects.insert(curve.subject);
    EXPECT_EQ(subjects,
              (std::set<std::string>{
                  "grouped product F32 G 8 N 1024 K 512", "dense as grouped F32 G 8 N 1024 K 512",
                  "grouped over dense F32 G 8 N 1024 K 512", "product F32 of 512, by rows",
                  "product F32 of 512, by columns", "product F32 of 512, by depth"}));
    const auto row = nlohmann::json::parse(findings.rows.back());
    EXPECT_EQ(row["depth"], 513);
    EXPECT_EQ(row["rows"], 512);
    EXPECT_GT(row["peak"], 0);
  });
}

}  // namespace
}  // namespace ashlar::bench
