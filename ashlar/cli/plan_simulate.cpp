// ashlar plan simulate RECIPE.toml [section.key=value ...] --ranks N --machine M [flags]
// ashlar plan simulate --trace DIR --machine M [flags]
//
// [--lump] [--slow R=F]... [--hot X | --loads FILE] [--perfetto FILE] [--json FILE]
// [--ranks-per-node N]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/band.h"
#include "ashlar/plan/simulate.h"
#include "ashlar/sim/imbalance.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {
namespace {

struct SimulateFlags {
  std::string recipe, trace, machine, loads, perfetto, json, engine;
  std::vector<std::string> overrides, slow;
  int ranks = 0, ranks_per_node = 0;
  std::optional<double> hot;
  bool lump = false;
  Existing existing = Existing::kRefuseUnlessForced;
};

// "3=1.2": rank 3, whose kernels take 1.2 times as long.
std::pair<int, double> slow_rank(const std::string& text) {
  int rank = -1;
  double factor = 0;
  const char* end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, rank);
  bool good = number.ec == std::errc() && number.ptr != end && *number.ptr == '=';
  if (good) {
    const auto value = std::from_chars(number.ptr + 1, end, factor);
    good = value.ec == std::errc() && value.ptr == end && rank >= 0 && factor > 0 && factor <= 1e6;
  }
  ASHLAR_REQUIRE(good, kConfig, "--slow is '{}'; expected RANK=FACTOR, as 3=1.2", printable(text));
  return {rank, factor};
}

sim::ImbalanceOptions imbalance_of(const SimulateFlags& flags, FileSystem& files) {
  sim::ImbalanceOptions options;
  for (const std::string& text : flags.slow) options.slow.insert(slow_rank(text));
  ASHLAR_REQUIRE(!flags.hot || flags.loads.empty(), kConfig,
                 "--hot and --loads both say the load of experts; give one of them");
  ASHLAR_REQUIRE(!flags.hot || *flags.hot >= 1, kConfig,
                 "--hot is {}; expected 1 or more, the load of the hottest expert over the mean",
                 flags.hot.value_or(0));
  options.hot = flags.hot;
  if (!flags.loads.empty())
    options.loads = sim::parse_loads(read_text(files, flags.loads, int64_t{4} << 30), flags.loads);
  return options;
}

sim::RankPrograms programs_for(const SimulateFlags& flags, const plan::MachineFile& machine,
                               FileSystem& files, Log& log) {
  if (!flags.trace.empty()) return plan::programs_of(files, flags.trace, log);
  const Recipe stated = train::read_recipe(files, flags.recipe, flags.overrides);
  train::warn_of_other_model(files, stated, log);
  const Recipe recipe = plan::with_bucket_bytes(stated, flags.ranks, machine, flags.ranks_per_node);
  return plan::programs_of(recipe, nn::resolve_precision(recipe.train.precision), flags.ranks, log,
                           flags.lump);
}

int run_simulate(const SimulateFlags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.trace.empty() != flags.recipe.empty(), kConfig,
                 "plan simulate needs a RECIPE with --ranks, or --trace DIR");
  ASHLAR_REQUIRE(flags.trace.empty() || flags.ranks == 0, kConfig,
                 "--ranks goes with a RECIPE; a trace has its own ranks");
  ASHLAR_REQUIRE(flags.trace.empty() || !flags.lump, kConfig,
                 "--lump goes with a RECIPE; a trace has all its ranks");
  ASHLAR_REQUIRE(!flags.lump || flags.slow.empty(), kConfig,
                 "--lump simulates one of all ranks that are alike, and --slow {} makes a rank "
                 "unlike others: leave out --lump",
                 printable(flags.slow.empty() ? "" : flags.slow[0]));
  ASHLAR_REQUIRE(flags.recipe.empty() || flags.ranks >= 1, kConfig,
                 "--ranks is {}; expected the ranks of the run, 1 or more", flags.ranks);
  ASHLAR_REQUIRE(flags.ranks_per_node >= 0, kConfig, "--ranks-per-node is {}; expected 1 or more",
                 flags.ranks_per_node);
  const auto files = posix_files();
  const bool json_to_stdout = flags.json == "-";
  Outputs outputs(*files, {flags.perfetto, json_to_stdout ? "" : flags.json},
                  {flags.recipe, flags.loads, flags.machine}, flags.existing);
  const plan::MachineFile machine = plan::read_machine(*files, flags.machine);
  plan::SimulateOptions options;
  options.imbalance = imbalance_of(flags, *files);
  options.ranks_per_node = flags.ranks_per_node;
  options.engine = flags.engine;
  options.keep_spans = !flags.perfetto.empty();
  const sim::RankPrograms programs = programs_for(flags, machine, *files, log);
  plan::SimulatedStep step = plan::simulate_step(programs, machine, options);
  constexpr size_t kMostRanksOfABand = 64;  // two more replays
  if (programs.ranks.size() <= kMostRanksOfABand)
    step.band_s = plan::step_band(programs, machine, options);
  if (!flags.perfetto.empty()) outputs.write(flags.perfetto, plan::perfetto_of(programs, step));
  const std::string json = plan::to_json(step, machine);
  if (!flags.json.empty() && !json_to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (json_to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(step, machine));
  return 0;
}

}  // namespace

void add_simulate(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<SimulateFlags>();
  CLI::App* sub = group.add_subcommand(
      "simulate", "the time of a training step on the machine of a profile (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe,
                  "TOML file (docs/recipes.md), of which a dry run is made");
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--trace", flags->trace,
                  "instead of a recipe: directory of trace files (plan dry-run --trace, "
                  "train.trace_steps)");
  sub->add_option("--machine", flags->machine,
                  "profile of the machine: a file, or h100, ... of machines/")
      ->required();
  sub->add_option("--ranks", flags->ranks, "ranks of the run");
  sub->add_option("--ranks-per-node", flags->ranks_per_node,
                  "ranks that share a node; by default its devices, or all ranks on CPUs");
  sub->add_option("--engine", flags->engine,
                  "engine whose curves count; by default the one with the most");
  sub->add_flag("--lump", flags->lump,
                "simulate one rank of all that have the same share of the model");
  sub->add_option("--slow", flags->slow, "RANK=FACTOR: this rank's kernels take so much longer")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--hot", flags->hot, "load of the hottest expert over the mean");
  sub->add_option("--loads", flags->loads, "metrics.jsonl of a run, whose loads of experts count");
  sub->add_option("--perfetto", flags->perfetto, "also write the timeline of every rank here");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_simulate(*flags, log); }; });
}

}  // namespace ashlar::cli
