// ashlar plan check RECIPE.toml [section.key=value ...] [--ranks N] [--machine M] [--json FILE]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/plan/check.h"

namespace ashlar::cli {
namespace {

struct CheckFlags {
  std::string recipe, machine, json;
  std::vector<std::string> overrides;
  int64_t ranks = 1;
  Existing existing = Existing::kRefuseUnlessForced;
};

int run_check(const CheckFlags& flags) {
  ASHLAR_REQUIRE(flags.ranks >= 1, kConfig,
                 "--ranks is {}; expected the ranks of the run, 1 or more", flags.ranks);
  const auto files = posix_files();
  const bool to_stdout = flags.json == "-";
  Outputs outputs(*files, {to_stdout ? "" : flags.json}, {flags.recipe, flags.machine},
                  flags.existing);
  std::optional<plan::MachineFile> machine;
  if (!flags.machine.empty()) machine = plan::read_machine(*files, flags.machine);
  const plan::MachineFile* known = machine ? &*machine : nullptr;
  const plan::Check check = plan::check(*files, flags.recipe, flags.overrides, flags.ranks, known);
  const std::string json = plan::to_json(check, known);
  if (!flags.json.empty() && !to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (to_stdout)
    print_json(json);
  else
    print_lines(plan::describe(check, known));
  return check.has_error() ? int(ErrorKind::kConfig) : 0;
}

}  // namespace

void add_check(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<CheckFlags>();
  CLI::App* sub = group.add_subcommand(
      "check",
      "whether the trainer takes a recipe, and shapes that a machine likes (docs/plan.md)");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks", flags->ranks, "ranks of the run")->capture_default_str();
  sub->add_option("--machine", flags->machine,
                  "profile of the machine: a file, or h100, ... of machines/");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] { action = [flags](Log&) { return run_check(*flags); }; });
}

}  // namespace ashlar::cli
