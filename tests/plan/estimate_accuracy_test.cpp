// Analytic times of a step against simulated ones, over random layouts of several recipes, on a
// profile whose times are laws in both.  ASHLAR_LAYOUTS=200 takes all recipes, and minutes;
// docs/plan.md has a summary of what it prints.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "ashlar/plan/estimate.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan {
namespace {

struct Family {
  const char* recipe;
  std::vector<std::string> keys;  // of every layout
  bool experts, cca, linear;
};

const std::vector<Family>& families() {
  static const std::vector<Family> list = {
      {"zaya1-8b", {"data.sequence_length=4096"}, true, true, false},
      {"llama3-8b", {"data.sequence_length=4096"}, false, false, false},
      {"qwen3-30b-a3b", {"model.num_hidden_layers=12"}, true, false, false},
      {"linear-llama3-1b", {"data.sequence_length=4096"}, false, false, true},
      {"zaya1-small", {}, true, true, false},
      {"moe-nano", {"data.sequence_length=2048"}, true, false, false},
  };
  return list;
}

// Splitmix64: the same layouts everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  template <typename T>
  T of(std::initializer_list<T> list) {
    return *(list.begin() + int64_t(next() % list.size()));
  }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

std::vector<std::string> random_keys(const Family& family, Dice& dice, int64_t ranks) {
  std::vector<std::string> keys = family.keys;
  const auto add = [&](const char* key, auto value) {
    keys.push_back(fmt::format("{}={}", key, value));
  };
  const int technique = dice.of({0, 0, 1, 2, 3, 4, 5});
  add("parallel.zero", dice.of({0, 1, 1, 2, 3}));
  add("train.recompute", dice.of({false, true}));
  const int micro = dice.of({1, 2});
  add("train.micro_batch", micro);
  add("train.global_batch", ranks * micro * dice.of({1, 2, 4}));
  add("optim.matrices", dice.of({"muon", "adamw"}));
  if (technique == 1) {
    add("parallel.tp", dice.of({2, 4}));
    add("parallel.sequence_parallel", dice.of({false, true}));
  }
  if (technique == 2) {
    add("parallel.cp", dice.of({2, 4}));
    add("parallel.cp_exchange", dice.of({"all_gather", "ring", "all_to_all"}));
    add("parallel.cp_layout", dice.of({"zigzag", "contiguous"}));
  }
  if (technique == 3) {
    add("parallel.pp", dice.of({2, 4}));
    add("parallel.schedule", dice.of({"gpipe", "1f1b", "zb"}));
  }
  if (technique == 4 && !family.experts && !family.linear) add("parallel.tsp", dice.of({2, 4}));
  if ((technique == 4 || technique == 5) && family.experts) add("parallel.ep", dice.of({2, 4}));
  return keys;
}

struct Compared {
  std::string name;
  double simulated_s = 0;
  sizing::StepTime estimated;
  double error() const { return estimated.total_s / simulated_s - 1; }
};

std::string parts(const sizing::StepTime& t) {
  return fmt::format(
      "fwd {:.1f} re {:.1f} loss {:.1f} bwd {:.1f} w {:.1f} opt {:.1f} gath {:.1f} grad {:.1f} tp "
      "{:.1f} cp {:.1f} tsp {:.1f} ep {:.1f} pp {:.1f} bub {:.1f} muon {:.1f}",
      1e3 * t.forward_s, 1e3 * t.recompute_s, 1e3 * t.loss_s, 1e3 * t.backward_s, 1e3 * t.weights_s,
      1e3 * t.optimizer_s, 1e3 * t.gather_wait_s, 1e3 * t.gradients_wait_s, 1e3 * t.tp_s,
      1e3 * t.cp_s, 1e3 * t.tsp_s, 1e3 * t.ep_s, 1e3 * t.pp_s, 1e3 * t.bubble_s, 1e3 * t.muon_s);
}

TEST(EstimateAccuracy, RandomLayoutsAgainstTheSimulator) {
  const auto files = posix_files();
  Log log([](std::string_view) {});
  MachineFile machine = read_machine(*files, "a100-dgx");
  machine.profile.set("device.peak_fp32",
                      {19.5, "TFLOP/s", machine::Origin::kVendor, "the data sheet", "", 0});
  const char* wanted = std::getenv("ASHLAR_LAYOUTS");
  const size_t count = wanted ? size_t(std::atoi(wanted)) : 10;
  std::vector<Compared> all;
  Dice dice(38);
  for (int attempt = 0; all.size() < count && attempt < 4 * int(count); ++attempt) {
    // The small ones alone in every build.
    const size_t first = wanted ? 0 : families().size() - 2;
    const Family& family = families()[first + size_t(attempt) % (families().size() - first)];
    const int64_t ranks = dice.of({2, 4, 8, 16});
    const std::vector<std::string> keys = random_keys(family, dice, ranks);
    const std::string path =
        fmt::format("{}/../../recipes/{}.toml", ASHLAR_FIXTURES, family.recipe);
    try {
      const Recipe recipe = train::read_recipe(*files, path, keys);
      const ParallelSpec parallel = resolve_parallel(recipe, ranks);
      const sim::RankPrograms programs = programs_of(recipe, DType::kBF16, int(ranks), log);
      const SimulatedStep step = simulate_step(programs, machine, {});
      const sizing::MachineRates rates(machine.profile, {}, ranks, true);
      Compared one;
      one.name = fmt::format("{} {} {}", family.recipe, ranks, fmt::join(keys, " "));
      one.simulated_s = step.step_s;
      one.estimated = sizing::step_time(sizing::step_shape(recipe, parallel, true), rates);
      fmt::print("{:+6.1f} % {:10.2f} {:10.2f} ms {}\n", 100 * one.error(), 1e3 * one.simulated_s,
                 1e3 * one.estimated.total_s, one.name);
      if (std::abs(one.error()) > 0.1) {
        double compute = 0, exposed = 0, waiting = 0;
        for (const auto& r : step.replayed.ranks) {
          compute = std::max(compute, r.compute_s), exposed = std::max(exposed, r.exposed_s);
          waiting = std::max(waiting, r.waiting_s);
        }
        fmt::print("      sim compute {:.1f} exposed {:.1f} waiting {:.1f}; {}\n", 1e3 * compute,
                   1e3 * exposed, 1e3 * waiting, parts(one.estimated));
      }
      std::fflush(stdout);
      all.push_back(one);
    } catch (const Error&) {
      continue;  // the trainer refuses this layout
    }
  }
  std::vector<double> errors;
  for (const Compared& one : all) errors.push_back(std::abs(one.error()));
  std::sort(errors.begin(), errors.end());
  ASSERT_EQ(errors.size(), count);
  fmt::print("{} layouts: median {:.1f} %, 90 in 100 within {:.1f} %, largest {:.1f} %\n", count,
             100 * errors[count / 2], 100 * errors[count * 9 / 10], 100 * errors.back());
  EXPECT_LT(errors[count / 2], wanted ? 0.05 : 0.12);
  // Muon on tsp 4 without ZeRO is beyond 20 %: two of 200.
  if (wanted) {
    EXPECT_LT(errors[count - 1 - count / 100], 0.20);
  }
  EXPECT_LT(errors.back(), 0.30);
}

}  // namespace
}  // namespace ashlar::plan
