// ashlar plan estimate RECIPE.toml [section.key=value ...] --machine M --ranks N
//                      [--layout "KEYS"]... [--ranks-per-node N] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/plan/estimate.h"

namespace ashlar::cli {
namespace {

constexpr int kDoesNotFit = 3;  // exit code: no layout fits into the device's memory

struct EstimateFlags {
  std::string recipe, machine, json;
  plan::EstimateOptions options;
  Existing existing = Existing::kRefuseUnlessForced;
};

int run_estimate(const EstimateFlags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.options.num_ranks >= 1, kConfig,
                 "--ranks is {}; expected the ranks of the run, 1 or more",
                 flags.options.num_ranks);
  ASHLAR_REQUIRE(flags.options.ranks_per_node >= 0, kConfig,
                 "--ranks-per-node is {}; expected 1 or more", flags.options.ranks_per_node);
  const auto files = posix_files();
  const bool to_stdout = flags.json == "-";
  Outputs outputs(*files, {to_stdout ? "" : flags.json}, {flags.recipe, flags.machine},
                  flags.existing);
  const plan::MachineFile machine = plan::read_machine(*files, flags.machine);
  const plan::Estimate estimate = plan::estimate(*files, flags.recipe, machine, flags.options);
  const double seconds = std::max(1e-9, estimate.elapsed_s);
  log.info("{} layout{} in {:.3f} ms, {} a second", estimate.layouts.size(),
           estimate.layouts.size() == 1 ? "" : "s", 1e3 * seconds,
           format_thousands(int64_t(double(estimate.layouts.size()) / seconds)));
  const std::string json = plan::to_json(estimate, machine);
  if (!flags.json.empty() && !to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(estimate, machine));
  const bool fits = std::any_of(estimate.layouts.begin(), estimate.layouts.end(),
                                [](const auto& layout) { return layout.fits; });
  return fits ? 0 : kDoesNotFit;
}

}  // namespace

void add_estimate(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<EstimateFlags>();
  CLI::App* sub = group.add_subcommand(
      "estimate", "time and memory of layouts by closed formulas, side by side (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->options.overrides,
                  "section.key=value, over the recipe's, of every layout");
  sub->add_option("--machine", flags->machine,
                  "profile of the machine: a file, or h100, ... of machines/")
      ->required();
  sub->add_option("--ranks", flags->options.num_ranks, "ranks of the run")->required();
  sub->add_option("--ranks-per-node", flags->options.ranks_per_node,
                  "ranks that share a node; by default its devices, or all ranks on CPUs");
  sub->add_option("--layout", flags->options.layouts,
                  "keys of a layout in one argument, as \"parallel.tp=2 parallel.zero=3\"")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_estimate(*flags, log); }; });
}

}  // namespace ashlar::cli
