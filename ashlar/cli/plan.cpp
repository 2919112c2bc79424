// ashlar plan dry-run RECIPE.toml [section.key=value ...] [--ranks N] [--rank R] [--json]
//                     [--device NAME|FILE] [--trace DIR]
// ashlar plan schedule [--stages P] [--virtual-stages V] [--micro-batches M] [--schedule 1f1b]
//                      [--svg FILE]
#include "ashlar/cli/plan.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ashlar/cli/command.h"
#include "ashlar/core/files.h"
#include "ashlar/machine/device_file.h"
#include "ashlar/nn/precision.h"
#include "ashlar/parallel/schedule_picture.h"
#include "ashlar/plan/json.h"
#include "ashlar/plan/print.h"
#include "ashlar/plan/traces.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {

namespace {

void add_dry_run(CLI::App* group, CommandAction& action) {
  struct Flags {
    std::string recipe;
    std::vector<std::string> overrides;
    int ranks = 1, ranks_per_node = plan::kRanksPerNode;
    std::optional<int> rank;
    bool json = false;
    std::string device, trace;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group->add_subcommand(
      "dry-run", "memory, traffic and flop of a training step on every rank of a mesh");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks", flags->ranks, "ranks of the run; any number")->capture_default_str();
  sub->add_option("--ranks-per-node", flags->ranks_per_node,
                  "ranks that share a machine: one may write checkpoints for all of them")
      ->capture_default_str();
  sub->add_option("--rank", flags->rank, "this rank alone");
  sub->add_option("--device", flags->device,
                  "a GPU to plan for: h200, h100, a100, mi300x, mi250x, or a file; default: CPUs");
  sub->add_flag("--json", flags->json, "print JSON (docs/plan.md)");
  sub->add_option("--trace", flags->trace,
                  "a new directory for the trace file of a step of every rank, or of --rank");
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      ASHLAR_REQUIRE(flags->ranks_per_node >= 1, kConfig,
                     "--ranks-per-node is {}; expected 1 or more", flags->ranks_per_node);
      const auto files = posix_files();
      Outputs traces(*files, {flags->trace}, {flags->recipe});
      const Recipe recipe = train::with_bucket_bytes(
          *files, train::read_recipe(*files, flags->recipe, flags->overrides), flags->ranks);
      train::warn_of_other_model(*files, recipe, log);
      std::optional<DeviceSpec> gpu;
      if (!flags->device.empty()) gpu = machine::read_device(*files, flags->device);
      const train::ComputeDevice on =
          gpu ? train::ComputeDevice::gpu(*gpu) : train::ComputeDevice{};
      const DType compute = gpu ? train::compute_on_gpu(recipe.train.precision)
                                : nn::resolve_precision(recipe.train.precision);
      const plan::MeshPlan plan = plan::plan_mesh(recipe, compute, flags->ranks, flags->rank, 0,
                                                  flags->ranks_per_node, &log, on);
      if (!flags->trace.empty())
        plan::write_traces(recipe, compute, flags->ranks, flags->rank, *files,
                           traces.make_directory(flags->trace), log, on);
      traces.publish();
      print_lines(flags->json ? plan::to_json(plan, recipe, compute)
                              : plan::describe(plan, recipe, compute));
      return 0;
    };
  });
}

Schedule parse_schedule(std::string_view name) {
  const auto found = std::find(kScheduleNames.begin(), kScheduleNames.end(), name);
  ASHLAR_REQUIRE(found != kScheduleNames.end(), kConfig, "--schedule is {}; expected {}", name,
                 fmt::join(kScheduleNames, ", "));
  return Schedule(found - kScheduleNames.begin());
}

void add_schedule(CLI::App* group, CommandAction& action) {
  struct Flags {
    int stages = 4, chunks = 1;
    int64_t micro_batches = 8;
    std::string schedule = "1f1b", svg;
    Existing existing;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group->add_subcommand(
      "schedule", "what the stages of a pipeline do at what time (docs/parallel/pp.md)");
  sub->add_option("--stages", flags->stages, "ranks of the pipeline")->capture_default_str();
  sub->add_option("--virtual-stages", flags->chunks, "of each stage, for interleaved")
      ->capture_default_str();
  sub->add_option("--micro-batches", flags->micro_batches, "of a step")->capture_default_str();
  sub->add_option("--schedule", flags->schedule, "gpipe, 1f1b, interleaved or zb")
      ->capture_default_str();
  sub->add_option("--svg", flags->svg, "also draw it into this file");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      constexpr double kMostUnits = 1e6;  // more cannot be looked at
      const Schedule schedule = parse_schedule(flags->schedule);
      const double units = double(flags->stages) * flags->chunks * double(flags->micro_batches);
      ASHLAR_REQUIRE(
          units <= kMostUnits, kConfig,
          "--stages {}, --virtual-stages {} and --micro-batches {} make {:.0f} pieces of "
          "work; expected at most {:.0f}",
          flags->stages, flags->chunks, flags->micro_batches, units, kMostUnits);
      const std::string text =
          parallel::describe_schedule(schedule, flags->stages, flags->chunks, flags->micro_batches);
      if (!flags->svg.empty()) {
        const auto files = posix_files();
        Outputs outputs(*files, {flags->svg}, {}, flags->existing);
        outputs.write(flags->svg, parallel::schedule_svg(schedule, flags->stages, flags->chunks,
                                                         flags->micro_batches));
        outputs.publish();
      }
      print_part(text);
      return 0;
    };
  });
}

}  // namespace

void add_plan(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand("plan", "what a run would need, counted without running it");
  group->require_subcommand(1);
  add_dry_run(group, action);
  add_schedule(group, action);
  add_check(*group, action);
  add_widths(*group, action);
  add_estimate(*group, action);
  add_goodput(*group, action);
  add_simulate(*group, action);
  add_search(*group, action);
  add_plan_compare(*group, action);
  add_calibrate(*group, action);
}

}  // namespace ashlar::cli
