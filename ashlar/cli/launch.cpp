#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "ashlar/cli/command.h"
#include "ashlar/core/process.h"
#include "ashlar/data/sources.h"
#include "ashlar/launch/by_hand.h"
#include "ashlar/launch/launch_files.h"
#include "ashlar/launch/launcher.h"
#include "ashlar/launch/slurm.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/estimate.h"
#include "ashlar/train/read_recipe.h"
#include "ashlar/train/run_recipe.h"
#include "ashlar/train/saves.h"
#include "ashlar/train/start.h"
#include "ashlar/train/start_checks.h"

namespace ashlar::cli {
namespace {

struct LaunchFlags {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 1, nodes = 0;
  bool join = false;
  std::string starter, metrics;
};

launch::AttemptCommand attempt_command(const LaunchFlags& flags, launch::StarterKind starter,
                                       const std::string& program, const OptimSpec& optim,
                                       std::optional<int64_t> from_step, double rate_factor) {
  launch::AttemptCommand command;
  command.starter = starter;
  if (starter == launch::StarterKind::kMpirun && !flags.join)
    command.words = launch::mpirun_words({}, flags.ranks);
  command.words.insert(command.words.end(), {program, "train", flags.recipe});
  command.words.insert(command.words.end(), flags.overrides.begin(), flags.overrides.end());
  if (starter == launch::StarterKind::kThreads)
    command.words.insert(command.words.end(), {"--ranks", std::to_string(flags.ranks)});
  if (rate_factor != 1)
    command.words.insert(command.words.end(),
                         {fmt::format("optim.lr={}", optim.lr * rate_factor),
                          fmt::format("optim.lr_min={}", optim.lr_min * rate_factor)});
  if (from_step)
    command.words.insert(command.words.end(),
                         {"--from-step", std::to_string(*from_step), "--supersede"});
  return command;
}

launch::StarterKind starter_of(const LaunchFlags& flags) {
  using enum launch::StarterKind;
  const bool srun = flags.starter == "srun";
  ASHLAR_REQUIRE((srun || flags.join) == (flags.nodes > 0), kConfig, "launch: {}",
                 srun || flags.join ? "--starter srun and --join need --nodes, of at least 1"
                                    : "--nodes needs --starter srun or --join");
  ASHLAR_REQUIRE(!flags.join || flags.starter.empty() || flags.starter == "mpirun", kConfig,
                 "launch: --join starts ranks by mpirun; leave --starter {} out", flags.starter);
  if (srun) return kSrun;
  if (flags.starter.empty()) return flags.ranks > 1 || flags.join ? kMpirun : kThreads;
  ASHLAR_REQUIRE(flags.starter == "mpirun" || flags.starter == "threads", kConfig,
                 "launch: --starter is '{}'; expected mpirun, threads or srun", flags.starter);
  return flags.starter == "mpirun" ? kMpirun : kThreads;
}

// Opens the data of a run without a checkpoint as its ranks will, so that a mistyped path ends the
// launch at once.  Other runs had their data, and may get it back: their ranks try several times.
void require_data(FileSystem& files, const Recipe& recipe) {
  if (launch::steps_in(files, train::checkpoint_root(recipe)).newest < 0)
    data::open_sources(files, recipe.data, recipe.model.vocab_size);
}

// The time of a step by the closed formulas, with the profile that train.machine names.  0 without
// a profile, or with one that lacks a number for it.
double planned_step_s(FileSystem& files, const Recipe& recipe, const LaunchFlags& flags, Log& log) {
  if (recipe.train.machine.empty()) return 0;
  try {
    const plan::MachineFile machine = plan::read_machine(files, recipe.train.machine);
    const plan::Estimate estimate =
        plan::estimate(files, flags.recipe, machine,
                       {.overrides = flags.overrides,
                        .layouts = {},
                        .num_ranks = flags.ranks * std::max(1, flags.nodes)});
    return estimate.layouts.at(0).time.total_s;
  } catch (const Error& error) {
    log.info("the first step may take 120 s, because its time cannot be estimated: {}",
             error.what());
    return 0;
  }
}

// The question whose answers launch.elastic needs: a profile gives the times of layouts.
std::optional<launch::LayoutQuestion> layouts_for(FileSystem& files, const Recipe& recipe,
                                                  const LaunchFlags& flags) {
  if (recipe.launch.elastic == Elastic::kOff) return std::nullopt;
  ASHLAR_REQUIRE(!recipe.train.machine.empty(), kConfig,
                 "launch.elastic needs the profile of a node, by which layouts of fewer nodes are "
                 "chosen; name it by train.machine (ashlar bench all), or choose off");
  ASHLAR_REQUIRE(recipe.balance.scope == BalanceScope::kGlobalBatch, kConfig,
                 "launch.elastic changes micro-batches, by which moe.balance.scope=\"micro_batch\" "
                 "balances experts; choose global_batch, or launch.elastic=\"off\"");
  constexpr int kGrain = 28;  // nodes of one kind differ by less
  return launch::LayoutQuestion{.recipe = recipe,
                                .compute = nn::resolve_precision(recipe.train.precision),
                                .machine = plan::read_machine(files, recipe.train.machine),
                                .nodes = flags.nodes,
                                .ranks_per_node = flags.ranks,
                                .node_bytes = memory_limit_bytes() >> kGrain << kGrain};
}

}  // namespace

void add_launch(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<LaunchFlags>();
  CLI::App* sub =
      app.add_subcommand("launch", "run a recipe to its end: starts its ranks again after a fault");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks-per-node", flags->ranks, "ranks on this machine, or on each node")
      ->capture_default_str();
  sub->add_option(
      "--nodes", flags->nodes,
      "nodes that the run uses at a time, with --starter srun or --join; any others are "
      "spares");
  sub->add_flag("--join", flags->join,
                "take part in a launch on several nodes: start the same command on each; mpirun "
                "must be able to reach them");
  sub->add_option("--starter", flags->starter,
                  "mpirun: ranks are processes, the default for more than one; threads: ranks are "
                  "threads of one process; srun: ranks run on the nodes of a Slurm job, each of "
                  "which runs this command");
  sub->add_option("--metrics", flags->metrics,
                  "HOST:PORT, or PORT of the loopback, where Prometheus can read /metrics");
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      ASHLAR_REQUIRE(flags->ranks >= 1, kConfig,
                     "launch: --ranks-per-node is {}; expected at least 1", flags->ranks);
      const launch::StarterKind starter = starter_of(*flags);
      const auto files = posix_files();
      const Recipe recipe = train::read_recipe(*files, flags->recipe, flags->overrides);
      train::check_ranks(recipe, flags->ranks * std::max(1, flags->nodes));
      train::require_own_recipe(*files, recipe);
      train::require_writable(*files, recipe);
      require_data(*files, recipe);
      const std::string program = std::filesystem::read_symlink("/proc/self/exe");
      const launch::LaunchPlan plan{recipe.launch,
                                    recipe.train.run_dir,
                                    train::checkpoint_root(recipe),
                                    flags->metrics,
                                    planned_step_s(*files, recipe, *flags, log),
                                    [&](std::optional<int64_t> from_step, double rate_factor) {
                                      return attempt_command(*flags, starter, program, recipe.optim,
                                                             from_step, rate_factor);
                                    }};
      if (flags->nodes > 0) {
        const launch::FleetWorld world{flags->nodes, flags->ranks,
                                       recipe.checkpoint.control_interface, program,
                                       layouts_for(*files, recipe, *flags)};
        return (flags->join ? launch::run_by_hand : launch::run_in_slurm)(plan, world, *files, log);
      }
      const launch::LaunchResult result = launch::run_launch(plan, *files, log);
      if (!result.reason.empty()) print_error(result.reason);
      return result.exit_code;
    };
  });
}

}  // namespace ashlar::cli
