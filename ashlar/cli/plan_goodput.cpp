// ashlar plan goodput RECIPE.toml [section.key=value ...] --node-mtbf H --ranks N
//                     [--machine M | --step-seconds S --save-seconds S] [--json FILE]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/plan/goodput.h"

namespace ashlar::cli {
namespace {

struct GoodputFlags {
  std::string recipe, machine, json;
  plan::GoodputOptions options;
  Existing existing = Existing::kRefuseUnlessForced;
};

int run_goodput(const GoodputFlags& flags) {
  const auto files = posix_files();
  const bool to_stdout = flags.json == "-";
  Outputs outputs(*files, {to_stdout ? "" : flags.json}, {flags.recipe, flags.machine},
                  flags.existing);
  std::optional<plan::MachineFile> machine;
  if (!flags.machine.empty()) machine = plan::read_machine(*files, flags.machine);
  const plan::GoodputPlan plan =
      plan::plan_goodput(*files, flags.recipe, machine ? &*machine : nullptr, flags.options);
  const std::string json = plan::to_json(plan);
  if (!flags.json.empty() && !to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(plan));
  return 0;
}

}  // namespace

void add_goodput(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<GoodputFlags>();
  plan::GoodputOptions& options = flags->options;
  CLI::App* sub = group.add_subcommand(
      "goodput", "the share of time that trains usefully on nodes that fail (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", options.overrides, "section.key=value, over the recipe's");
  sub->add_option("--node-mtbf", options.node_mtbf_h, "hours of one node between its failures")
      ->required();
  sub->add_option("--ranks", options.num_ranks, "ranks of the run")->required();
  sub->add_option("--ranks-per-node", options.ranks_per_node,
                  "ranks that share a node; by default those of the machine, else 8");
  sub->add_option("--machine", flags->machine,
                  "profile of the machine: a file, or h100, ... of machines/");
  sub->add_option("--step-seconds", options.step_s,
                  "seconds of a step; by default estimated for the machine");
  sub->add_option("--save-seconds", options.commit_s,
                  "seconds until a save is committed; by default its bytes over the machine's "
                  "storage.write");
  sub->add_option("--save-wait-seconds", options.save_wait_s,
                  "seconds that training waits for a save")
      ->capture_default_str();
  sub->add_option("--restart-seconds", options.restart_s,
                  "seconds from a failure to the next step: it is noticed, ranks start and load")
      ->capture_default_str();
  sub->add_option("--replace-hours", options.replace_h,
                  "hours until a failed node is back: also say what spare nodes are worth");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] { action = [flags](Log&) { return run_goodput(*flags); }; });
}

}  // namespace ashlar::cli
