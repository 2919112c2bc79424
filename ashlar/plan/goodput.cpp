#include "ashlar/plan/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/checkpoint.h"
#include "ashlar/plan/estimate.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan {
namespace {

double positive(double value, const char* flag, const char* what) {
  ASHLAR_REQUIRE(std::isfinite(value) && value > 0, kConfig, "{} is {}; expected {}, above 0", flag,
                 value, what);
  return value;
}

double not_negative(double value, const char* flag, const char* what) {
  ASHLAR_REQUIRE(std::isfinite(value) && value >= 0, kConfig, "{} is {}; expected {}, 0 or more",
                 flag, value, what);
  return value;
}

// Seconds of a step, and the ranks of a node.
struct StepOfGoodput {
  double step_s = 0;
  int64_t ranks_per_node = 0;
};

StepOfGoodput step_of(FileSystem& files, const std::string& recipe, const MachineFile* machine,
                      const GoodputOptions& options, std::vector<std::string>& assumed) {
  if (options.step_s) {
    int64_t ranks_per_node = options.ranks_per_node;
    const auto* devices = machine ? machine->profile.find("node.devices") : nullptr;
    if (ranks_per_node == 0 && devices) ranks_per_node = std::llround(devices->value);
    if (ranks_per_node == 0) {
      ranks_per_node = kRanksPerNode;
      assumed.push_back(fmt::format("{} ranks share a node", ranks_per_node));
    }
    return {positive(*options.step_s, "--step-seconds", "the seconds of a step"), ranks_per_node};
  }
  ASHLAR_REQUIRE(machine, kConfig,
                 "how long is a step? Give --machine, whose profile tells, or --step-seconds");
  EstimateOptions estimated;
  estimated.overrides = options.overrides;
  estimated.num_ranks = options.num_ranks;
  estimated.ranks_per_node = options.ranks_per_node;
  const Estimate e = estimate(files, recipe, *machine, estimated);
  assumed.push_back(fmt::format("a step takes {:.3f} s, as `plan estimate` says of {}",
                                e.layouts[0].time.total_s, machine->profile.name));
  return {e.layouts[0].time.total_s, e.ranks_per_node};
}

double commit_of(const Recipe& recipe, const MachineFile* machine, const GoodputOptions& options,
                 const GoodputPlan& plan, int ranks_per_node, std::vector<std::string>& assumed) {
  if (options.commit_s)
    return not_negative(*options.commit_s, "--save-seconds",
                        "the seconds from a save's begin to its end");
  ASHLAR_REQUIRE(machine, kConfig,
                 "how long does a save take? Give --machine, whose storage.write tells, or "
                 "--save-seconds");
  const double written = machine->profile.need("storage.write").value * 1e9;
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const int64_t bytes =
      plan_checkpoint(recipe, compute, int(options.num_ranks), 0, ranks_per_node).data_bytes;
  assumed.push_back(fmt::format("a save has {}, each node writes its part at {:.3g} GB/s",
                                format_bytes(bytes), written / 1e9));
  return double(bytes) / double(plan.num_nodes) / written;
}

std::string shares_line(const char* name, int64_t every, double step_s,
                        const sizing::GoodputShares& shares) {
  return fmt::format("{:<20}{:>10}{:>10}{:>10.3f}{:>10.3f}{:>10.3f}{:>12.3f}\n", name, every,
                     format_duration(double(every) * step_s), 100 * shares.useful,
                     100 * shares.saves, 100 * shares.restarts, 100 * shares.recomputed);
}

Ordered shares_json(const sizing::GoodputShares& shares) {
  return {{"useful", shares.useful},
          {"saves", shares.saves},
          {"restarts", shares.restarts},
          {"recomputed", shares.recomputed}};
}

void add_spares(const GoodputOptions& options, GoodputPlan& plan) {
  plan.replace_h =
      positive(*options.replace_h, "--replace-hours", "the hours until a failed node is back");
  const double away_s = 3600 * plan.replace_h;
  sizing::FailingRun run = plan.run;
  run.restart_s += away_s;
  plan.waiting = sizing::goodput(run);
  plan.spares = sizing::spares_for(plan.run.failures_per_s, away_s, kSpareShare);
}

}  // namespace

GoodputPlan plan_goodput(FileSystem& files, const std::string& path, const MachineFile* machine,
                         const GoodputOptions& options) {
  GoodputPlan plan;
  plan.node_mtbf_h =
      positive(options.node_mtbf_h, "--node-mtbf", "the hours of one node between its failures");
  ASHLAR_REQUIRE(options.num_ranks >= 1, kConfig, "--ranks is {}; expected 1 or more",
                 options.num_ranks);
  ASHLAR_REQUIRE(options.ranks_per_node >= 0, kConfig, "--ranks-per-node is {}; expected 1 or more",
                 options.ranks_per_node);
  const Recipe recipe = train::read_recipe(files, path, options.overrides);
  resolve_parallel(recipe, options.num_ranks);
  ASHLAR_REQUIRE(recipe.checkpoint.every > 0, kConfig,
                 "checkpoint.every is {}: a failure would take the whole run; expected the steps "
                 "from save to save",
                 recipe.checkpoint.every);
  plan.recipe = recipe.name.empty() ? recipe.source : recipe.name;
  plan.num_ranks = options.num_ranks;
  plan.every = recipe.checkpoint.every;
  const StepOfGoodput step = step_of(files, path, machine, options, plan.assumed);
  plan.step_s = step.step_s;
  plan.num_nodes = (plan.num_ranks + step.ranks_per_node - 1) / step.ranks_per_node;
  plan.run.failures_per_s = double(plan.num_nodes) / (3600 * plan.node_mtbf_h);
  plan.run.interval_s = double(plan.every) * plan.step_s;
  plan.run.commit_s =
      commit_of(recipe, machine, options, plan, int(step.ranks_per_node), plan.assumed);
  plan.run.save_wait_s =
      not_negative(options.save_wait_s, "--save-wait-seconds", "the seconds that training waits");
  plan.run.restart_s = not_negative(options.restart_s, "--restart-seconds",
                                    "the seconds from a failure to the next step");
  plan.own = sizing::goodput(plan.run);
  const double interval_s = sizing::best_interval(plan.run);
  plan.best_every = std::max<int64_t>(1, std::llround(interval_s / plan.step_s));
  sizing::FailingRun best = plan.run;
  best.interval_s = double(plan.best_every) * plan.step_s;
  plan.best = sizing::goodput(best);
  if (options.replace_h) add_spares(options, plan);
  return plan;
}

std::string describe(const GoodputPlan& p) {
  std::string text = fmt::format(
      "{} on {} rank{}, {} node{}; a node fails every {:.4g} h, the run every {}\n\n", p.recipe,
      p.num_ranks, p.num_ranks == 1 ? "" : "s", p.num_nodes, p.num_nodes == 1 ? "" : "s",
      p.node_mtbf_h, format_duration(1 / p.run.failures_per_s));
  text += fmt::format("{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}\n", "% of the time", "steps",
                      "time", "useful", "saves", "restarts", "recomputed");
  text += shares_line("checkpoint.every", p.every, p.step_s, p.own);
  text += shares_line("the best", p.best_every, p.step_s, p.best);
  text += fmt::format(
      "\nstep {:.3f} s; a save makes training wait {:.3f} s and is committed after {}; from a "
      "failure to the next step {}\n",
      p.step_s, p.run.save_wait_s, format_duration(p.run.commit_s),
      format_duration(p.run.restart_s));
  if (p.run.interval_s < p.run.commit_s)
    text += "the recipe saves more often than a save takes: training will wait for saves\n";
  if (p.waiting)
    text += fmt::format(
        "without spares, waiting {:.4g} h for each failed node: {:.3f} % useful; {} spare{} cover "
        "{:.4g} % of the time\n",
        p.replace_h, 100 * p.waiting->useful, p.spares, p.spares == 1 ? "" : "s",
        100 * kSpareShare);
  for (const std::string& line : p.assumed) text += fmt::format("assumed: {}\n", line);
  text.pop_back();
  return text;
}

std::string to_json(const GoodputPlan& p) {
  Ordered json = {{"format", "ashlar-goodput-1"},
                  {"recipe", p.recipe},
                  {"ranks", p.num_ranks},
                  {"nodes", p.num_nodes},
                  {"node_mtbf_h", p.node_mtbf_h},
                  {"failures_per_s", p.run.failures_per_s},
                  {"step_s", p.step_s},
                  {"save_wait_s", p.run.save_wait_s},
                  {"commit_s", p.run.commit_s},
                  {"restart_s", p.run.restart_s},
                  {"every", p.every},
                  {"shares", shares_json(p.own)},
                  {"best_every", p.best_every},
                  {"best_shares", shares_json(p.best)}};
  if (p.waiting) {
    json["replace_h"] = p.replace_h;
    json["waiting_shares"] = shares_json(*p.waiting);
    json["spares"] = p.spares;
  }
  json["assumed"] = p.assumed;
  return one_line(json);
}

}  // namespace ashlar::plan
