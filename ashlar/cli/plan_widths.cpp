// ashlar plan widths RECIPE.toml [section.key=value ...] --machine M [--machine M]...
//                    [--tolerance 0.01] [--svg FILE] [--json FILE]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/plan/widths.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {
namespace {

struct WidthsFlags {
  std::string recipe, json, svg;
  std::vector<std::string> overrides, machines;
  sizing::MoeWidthsOptions options;
  Existing existing = Existing::kRefuseUnlessForced;
};

int run_widths(const WidthsFlags& flags) {
  ASHLAR_REQUIRE(flags.options.tolerance > 0 && flags.options.tolerance <= 0.5, kConfig,
                 "--tolerance is {}; expected a share of the parameters, above 0 and up to 0.5",
                 flags.options.tolerance);
  const auto files = posix_files();
  const bool to_stdout = flags.json == "-";
  std::vector<std::string> inputs = flags.machines;
  inputs.push_back(flags.recipe);
  Outputs outputs(*files, {to_stdout ? "" : flags.json, flags.svg}, inputs, flags.existing);
  std::vector<plan::MachineFile> machines;
  for (const std::string& name : flags.machines)
    machines.push_back(plan::read_machine(*files, name));
  const Recipe recipe = train::read_recipe(*files, flags.recipe, flags.overrides);
  const plan::Widths widths = plan::widths_of(recipe, machines, flags.options);
  const std::string json = plan::to_json(widths, machines);
  if (!flags.json.empty() && !to_stdout) outputs.write(flags.json, json + "\n");
  if (!flags.svg.empty()) outputs.write(flags.svg, plan::to_svg(widths, machines));
  outputs.publish();
  if (to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(widths, machines));
  return 0;
}

}  // namespace

void add_widths(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<WidthsFlags>();
  CLI::App* sub = group.add_subcommand(
      "widths", "shapes of a mixture of experts for training and generation (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--machine", flags->machines,
                  "profile of a machine: a file, or h100, ... of machines/; the first trains, all "
                  "of them generate")
      ->required()
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--tolerance", flags->options.tolerance,
                  "share by which total and active parameters may differ")
      ->capture_default_str();
  sub->add_option("--svg", flags->svg, "also draw it into this file");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] { action = [flags](Log&) { return run_widths(*flags); }; });
}

}  // namespace ashlar::cli
