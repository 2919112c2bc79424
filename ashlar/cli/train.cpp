// ashlar train RECIPE.toml [section.key=value ...] [--dry-run] [--timing] [--bind-to core|none]
//              [--from-step S [--supersede]]
#include <CLI/CLI.hpp>
#include <cstdlib>

#include "ashlar/cli/command.h"
#include "ashlar/core/agent.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/print.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/machine.h"
#include "ashlar/train/read_recipe.h"
#include "ashlar/train/start.h"
#include "ashlar/train/start_checks.h"
#include "ashlar/train/start_timing.h"

namespace ashlar::cli {
namespace {

void require_memory_limit(const plan::MeshPlan& plan, const Recipe& recipe, int num_ranks) {
  for (const plan::RankClass& ranks : plan.classes) {
    const std::string problem = train::memory_limit_problem(
        train::rank_bytes(ranks.plan, recipe, plan.parallel), recipe, num_ranks);
    ASHLAR_REQUIRE(problem.empty(), kMemory, "{}", problem);
  }
}

// Refuses what a start with so many ranks in this process refuses before it reads weights or data.
int dry_run(const Recipe& stated, int num_ranks, FileSystem& files, Log& log) {
  train::check_ranks(stated, num_ranks);
  const Recipe recipe = train::with_bucket_bytes(files, stated, num_ranks);
  const std::optional<DeviceSpec> gpu = train::choose_gpu(recipe, num_ranks, log);
  const DType compute = gpu ? train::compute_on_gpu(recipe.train.precision)
                            : nn::resolve_precision(recipe.train.precision);
  const plan::MeshPlan plan =
      plan::plan_mesh(recipe, compute, num_ranks, {}, 0, num_ranks, &log,
                      gpu ? train::ComputeDevice::gpu(*gpu) : train::ComputeDevice{});
  gpu ? train::require_gpu_memory(plan.classes[0].plan, *gpu)
      : require_memory_limit(plan, recipe, num_ranks);
  print_lines(to_toml(recipe));
  print_lines(plan::describe(plan, recipe, compute));
  return 0;
}

// The process of a rank, or of all ranks if they are threads, under `ashlar launch`.
void tell_launcher(int num_threads) {
  const auto number = [](const char* variable, int otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : otherwise;
  };
  const bool by_srun = std::getenv("PMIX_RANK") && !std::getenv("OMPI_COMM_WORLD_RANK");
  tell_agent({.rank = number(by_srun ? "PMIX_RANK" : "OMPI_COMM_WORLD_RANK", 0),
              .num_ranks = number(by_srun ? "SLURM_NTASKS" : "OMPI_COMM_WORLD_SIZE", num_threads),
              .host = train::host_name()});
}

// Earlier versions read it; a run that passed over it would listen at other interfaces.
void refuse_former_variable() {
  const char* name = std::getenv("ASHLAR_CONTROL_INTERFACE");
  ASHLAR_REQUIRE(!name, kConfig,
                 "ASHLAR_CONTROL_INTERFACE is {} in the environment, which is not read any more; "
                 "unset it, and choose checkpoint.control_interface={} in its place",
                 name, name);
}

}  // namespace

void add_train(CLI::App& app, CommandAction& action) {
  struct Flags {
    std::string recipe;
    std::vector<std::string> overrides;
    bool dry_run = false;
    int ranks = 1;
    std::optional<int64_t> from_step;
    bool supersede = false;
    bool timing = false;
    std::string bind_to;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "train", "run a recipe; continues by itself from the newest good checkpoint");
  sub->add_option("RECIPE", flags->recipe, "TOML file (docs/recipes.md)")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_flag("--dry-run", flags->dry_run,
                "print the resolved recipe, memory and flop; train nothing");
  sub->add_option("--ranks", flags->ranks,
                  "ranks, as threads of this process (docs/parallel/README.md)")
      ->capture_default_str();
  CLI::Option* from = sub->add_option("--from-step", flags->from_step,
                                      "continue from this step instead of the newest good one");
  sub->add_flag("--supersede", flags->supersede,
                "with --from-step: set newer steps aside, until the run has come as far again")
      ->needs(from);
  sub->add_flag("--timing", flags->timing, "say where the time to the end of the first step goes");
  add_bind_to(*sub, flags->bind_to);
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      const train::Binding binding = train::parse_binding(flags->bind_to);
      if (!flags->dry_run) tell_launcher(flags->ranks);
      std::optional<train::StartTiming> timing;
      if (flags->timing) timing.emplace().enter("reading the recipe");
      refuse_former_variable();
      const auto files = posix_files();
      const Recipe recipe =
          train::read_recipe(*files, flags->recipe, flags->overrides, flags->from_step);
      if (flags->dry_run) {
        train::warn_of_other_model(*files, recipe, log);
        return dry_run(recipe, flags->ranks, *files, log);
      }
      if (timing) timing->enter("choosing the precision");
      const train::Outcome outcome = train::start_run(recipe, *files, log,
                                                      {.num_ranks = flags->ranks,
                                                       .report = print_error,
                                                       .from_step = flags->from_step,
                                                       .supersede = flags->supersede,
                                                       .timing = timing ? &*timing : nullptr,
                                                       .binding = binding});
      if (outcome == train::Outcome::kTimeUp)
        log.info("train.max_minutes is over; the same command continues where this stopped");
      return outcome == train::Outcome::kPreempted ? int(ErrorKind::kPreempted) : 0;
    };
  });
}

}  // namespace ashlar::cli
