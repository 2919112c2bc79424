// ashlar plan search RECIPE.toml [section.key=value ...] --ranks N --machine M [--goal G]
//                    [--fix section.key=value]... [--top 5] [--memory GIB] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/search.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {
namespace {

constexpr int kNothingFits = 3;  // exit code

struct SearchFlags {
  std::string recipe, machine, json, engine, goal = plan::kGoalNames[0];
  std::vector<std::string> overrides, fixed;
  int ranks = 0, ranks_per_node = 0, top = 5, simulate = 20;
  double memory_gib = 0;
  Existing existing = Existing::kRefuseUnlessForced;
};

plan::SearchOptions options_of(const SearchFlags& flags) {
  const auto check = [](const char* name, int64_t value, int64_t least, int64_t most) {
    ASHLAR_REQUIRE(value >= least && value <= most, kConfig, "{} is {}; expected {} to {}", name,
                   value, least, most);
  };
  check("--ranks", flags.ranks, 1, 1 << 20);
  check("--ranks-per-node", flags.ranks_per_node, 0, 1 << 20);
  check("--top", flags.top, 1, 1000);
  check("--simulate", flags.simulate, 1, 1000);
  ASHLAR_REQUIRE(flags.memory_gib >= 0 && flags.memory_gib <= 1e9, kConfig,
                 "--memory is {}; expected GiB of a rank", flags.memory_gib);
  const auto goal = std::find(plan::kGoalNames.begin(), plan::kGoalNames.end(), flags.goal);
  const std::vector<std::string> names(plan::kGoalNames.begin(), plan::kGoalNames.end());
  ASHLAR_REQUIRE(goal != plan::kGoalNames.end(), kConfig, "--goal is {}{}", printable(flags.goal),
                 suggestion(flags.goal, names));
  plan::SearchOptions options;
  options.goal = plan::Goal(goal - plan::kGoalNames.begin());
  options.num_ranks = flags.ranks;
  options.ranks_per_node = flags.ranks_per_node;
  options.engine = flags.engine;
  for (const std::string& texts : flags.fixed)
    for (const std::string& text : split(texts, ' '))
      if (!text.empty()) options.fixed.push_back(text);
  options.top = flags.top;
  options.num_simulated = std::max(flags.simulate, flags.top);
  options.memory_bytes = int64_t(flags.memory_gib * double(int64_t{1} << 30));
  return options;
}

int run_search(const SearchFlags& flags, Log& log) {
  const plan::SearchOptions options = options_of(flags);
  const auto files = posix_files();
  const bool json_to_stdout = flags.json == "-";
  Outputs outputs(*files, {json_to_stdout ? "" : flags.json}, {flags.recipe, flags.machine},
                  flags.existing);
  const plan::MachineFile machine = plan::read_machine(*files, flags.machine);
  std::vector<std::string> keys = flags.overrides;
  keys.insert(keys.end(), options.fixed.begin(), options.fixed.end());
  const Recipe recipe = train::read_recipe(*files, flags.recipe, keys);
  train::warn_of_other_model(*files, recipe, log);
  const plan::SearchResult result =
      plan::search(recipe, nn::resolve_precision(recipe.train.precision), machine, options, log);
  const std::string json = plan::to_json(result, recipe, machine, options);
  if (!flags.json.empty() && !json_to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (json_to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(result, recipe, machine, options));
  return result.best.empty() ? kNothingFits : 0;
}

}  // namespace

void add_search(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<SearchFlags>();
  CLI::App* sub = group.add_subcommand(
      "search", "the best layouts on the machine of a profile, and why others lose (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--machine", flags->machine,
                  "profile of the machine: a file, or h100, ... of machines/")
      ->required();
  sub->add_option("--ranks", flags->ranks, "ranks of the run")->required();
  sub->add_option("--ranks-per-node", flags->ranks_per_node,
                  "ranks that share a node; by default its devices, or all ranks on CPUs");
  sub->add_option("--engine", flags->engine,
                  "engine whose curves count; by default the one with the most");
  sub->add_option("--goal", flags->goal, "time, max-sequence, max-micro-batch or min-memory")
      ->capture_default_str();
  sub->add_option("--fix", flags->fixed,
                  "\"section.key=value ...\": keys with these values only, whatever the links say")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--top", flags->top, "layouts to show")->capture_default_str();
  sub->add_option("--simulate", flags->simulate, "layouts to simulate")->capture_default_str();
  sub->add_option("--memory", flags->memory_gib, "GiB that a rank may take; by default all");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_search(*flags, log); }; });
}

}  // namespace ashlar::cli
