// ashlar plan calibrate RECIPE.toml [section.key=value ...] --machine M [--ranks N] [--runs 10]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "ashlar/bench/machine/layout_steps.h"
#include "ashlar/bench/machine/session.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/calibrate.h"
#include "ashlar/train/start.h"

namespace ashlar::cli {
namespace {

struct CalibrateFlags {
  std::string recipe, machine, json, engine, bind_to;
  std::vector<std::string> overrides, layouts;
  int ranks = 1;
  int64_t runs = 10, steps = 8, rounds = 3;
  Existing existing = Existing::kRefuseUnlessForced;
};

// Runs and simulations have buckets of one size.
std::vector<bench::Layout> layouts_on(const CalibrateFlags& flags, int num_ranks,
                                      const plan::MachineFile& machine,
                                      const std::vector<std::string>& keys) {
  std::vector<bench::Layout> layouts = layouts_of(flags.recipe, flags.overrides, keys);
  for (bench::Layout& layout : layouts)
    layout.recipe = plan::with_bucket_bytes(layout.recipe, num_ranks, machine);
  return layouts;
}

std::vector<bench::Layout> chosen_layouts(const CalibrateFlags& flags, int num_ranks,
                                          const plan::MachineFile& machine) {
  std::vector<std::string> keys = flags.layouts;
  if (keys.empty())
    keys =
        bench::layouts_to_calibrate(num_ranks, size_t(flags.runs), [&](const std::string& layout) {
          return layouts_on(flags, num_ranks, machine, {layout})[0].recipe;
        });
  ASHLAR_REQUIRE(!keys.empty(), kConfig,
                 "{} ranks cannot share this recipe in any way; name "
                 "layouts with --layout",
                 num_ranks);
  return layouts_on(flags, num_ranks, machine, keys);
}

std::string measured_text(std::span<const bench::Layout> layouts,
                          std::span<const bench::LayoutSteps> steps) {
  std::string text;
  for (size_t i = 0; i < layouts.size(); ++i)
    if (steps[i].foreign_share > machine::kMaxForeignShare || steps[i].spread > 0.05)
      text += fmt::format("{}: rounds differ by {:.1f} %, others took {:.1f} % of the cores\n",
                          layouts[i].keys, 100 * steps[i].spread, 100 * steps[i].foreign_share);
  return text.empty() ? text : "not calm:\n" + text;
}

int run_calibrate(const CalibrateFlags& flags, Log& log) {
  constexpr int64_t kMost = 1000;
  for (const auto& [name, value] :
       {std::pair{"--runs", flags.runs}, {"--steps", flags.steps}, {"--rounds", flags.rounds}})
    ASHLAR_REQUIRE(value >= 1 && value <= kMost, kConfig, "{} is {}; expected 1 to {}", name, value,
                   kMost);
  const auto files = posix_files();
  const bool json_to_stdout = flags.json == "-";
  Outputs outputs(*files, {json_to_stdout ? "" : flags.json}, {flags.recipe, flags.machine},
                  flags.existing);
  plan::MachineFile machine = plan::read_machine(*files, flags.machine);
  ASHLAR_REQUIRE(files->stat(flags.machine, LinkPolicy::kFollow).has_value(), kConfig,
                 "--machine {} is a profile that the program carries; calibrate measures this "
                 "machine: give the file of its profile",
                 flags.machine);
  bench::require_same_machine(machine.profile, flags.machine);
  const train::Start start{.num_ranks = flags.ranks,
                           .report = print_error,
                           .binding = train::parse_binding(flags.bind_to)};
  const Recipe own = layouts_of(flags.recipe, flags.overrides, {})[0].recipe;
  const train::RankSettings settings{own.train.threads, own.train.memory_limit_mib, {}};
  bool calm = true;
  train::start_ranks(settings, start, [&](const train::RankResources& resources) {
    const int num_ranks = resources.ranks.size();
    const std::vector<bench::Layout> layouts = chosen_layouts(flags, num_ranks, machine);
    const bool leads = resources.ranks.rank() == 0;
    std::optional<Progress> progress;
    if (leads) progress.emplace(log, "calibration", flags.rounds * int64_t(layouts.size()), "runs");
    const std::vector<bench::LayoutSteps> steps = bench::measure_layout_steps(
        layouts, resources, flags.steps, flags.rounds, [&] { progress->advance(1); });
    if (!leads) return;
    progress.reset();
    std::vector<plan::CalibrationRun> runs;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Recipe& recipe = layouts[i].recipe;
      runs.push_back(
          {layouts[i].keys,
           plan::programs_of(recipe, nn::resolve_precision(recipe.train.precision), num_ranks, log),
           steps[i].step_s});
    }
    plan::SimulateOptions options;
    options.engine = flags.engine;
    plan::Calibrated calibrated = plan::calibrate(runs, machine, options);
    calibrated.calibration.date = checkpoint::utc_now().substr(0, 10);
    calibrated.calibration.commit = fmt::format("ashlar {}", ASHLAR_VERSION);
    const std::string disturbed = measured_text(layouts, steps);
    calm = disturbed.empty();
    machine.profile.calibration = calibrated.calibration;
    write_text(*files, flags.machine, machine::to_toml(machine.profile));
    if (json_to_stdout)
      print_json(plan::to_json(calibrated));
    else
      print_lines(plan::describe(calibrated) + (calm ? "" : "\n" + disturbed));
    if (!flags.json.empty() && !json_to_stdout)
      outputs.write(flags.json, plan::to_json(calibrated) + "\n");
    outputs.publish();
  });
  return calm ? 0 : machine::exit_code(machine::Verdict::kDisturbed, false);
}

}  // namespace

void add_calibrate(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* sub = group.add_subcommand(
      "calibrate", "short runs of a few layouts, and the factors that bring simulations to them");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--machine", flags->machine,
                  "profile of this machine, into which the factors are written")
      ->required();
  sub->add_option("--ranks", flags->ranks, "ranks, as threads of this process; 1 under mpirun")
      ->capture_default_str();
  add_bind_to(*sub, flags->bind_to);
  sub->add_option("--runs", flags->runs, "layouts at most, if none are named")
      ->capture_default_str();
  sub->add_option("--layout", flags->layouts,
                  "overrides of one layout, \"KEY=VALUE KEY=VALUE\"; may be given several times")
      ->allow_extra_args(false);
  sub->add_option("--steps", flags->steps, "timed steps of a run")->capture_default_str();
  sub->add_option("--rounds", flags->rounds, "runs of a layout, spread over the time")
      ->capture_default_str();
  sub->add_option("--engine", flags->engine,
                  "engine whose curves count; by default the one with the most");
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_calibrate(*flags, log); }; });
}

}  // namespace ashlar::cli
