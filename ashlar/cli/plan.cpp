// ashlar plan dry-run RECIPE.toml [section.key=value ...] [--ranks N] [--rank R] [--json]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan_json.h"
#include "ashlar/train/plan_print.h"

namespace ashlar::cli {

void add_plan(CLI::App& app, Action& action) {
  CLI::App* group = app.add_subcommand("plan", "what a run would need, counted without running it");
  group->require_subcommand(1);
  struct Flags {
    std::string recipe;
    std::vector<std::string> overrides;
    int ranks = 1;
    std::optional<int> rank;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group->add_subcommand(
      "dry-run", "memory, traffic and flop of a training step on every rank of a mesh");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks", flags->ranks, "ranks of the run; any number")->capture_default_str();
  sub->add_option("--rank", flags->rank, "this rank alone");
  sub->add_flag("--json", flags->json, "print JSON (docs/plan.md)");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      const Recipe recipe = load_recipe(flags->recipe, flags->overrides);
      const DType compute = nn::resolve_precision(recipe.train.precision);
      const train::MeshPlan plan = train::plan_mesh(recipe, compute, flags->ranks, flags->rank);
      print_result(flags->json ? train::to_json(plan, recipe, compute)
                               : train::describe(plan, recipe, compute));
      return 0;
    };
  });
}

}  // namespace ashlar::cli
