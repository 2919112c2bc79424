// ashlar bench storage [--dir DIRECTORY] [--recipe FILE.toml [section.key=value]]
#include <CLI/CLI.hpp>

#include "ashlar/bench/machine/storage.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {
namespace {

struct StorageFlags {
  MachineFlags machine;
  bench::StorageOptions options;
  std::string recipe;
  std::vector<std::string> overrides;
};

int run_storage(StorageFlags flags, Log& log) {
  constexpr double kMost_s = 1e6;
  constexpr int kMostRanks = 1 << 20;
  bench::StorageOptions& options = flags.options;
  ASHLAR_REQUIRE(options.step_s >= 0 && options.step_s <= kMost_s, kConfig,
                 "--step-seconds is {}; expected 0 to {:.0f}", options.step_s, kMost_s);
  ASHLAR_REQUIRE(options.run_ranks >= 0 && options.run_ranks <= kMostRanks, kConfig,
                 "--run-ranks is {}; expected 0 to {}", options.run_ranks, kMostRanks);
  ASHLAR_REQUIRE(!flags.recipe.empty() ||
                     (flags.overrides.empty() && options.step_s == 0 && options.run_ranks == 0),
                 kConfig,
                 "--step-seconds, --run-ranks and section.key=value are about a run; name it with "
                 "--recipe FILE");
  const auto files = posix_files();
  if (!flags.recipe.empty())
    options.recipe = train::read_recipe(*files, flags.recipe, flags.overrides);
  const auto measure = [&](const bench::Rig& rig) {
    return bench::measure_storage(rig, options, *files);
  };
  return run_machine(flags.machine, "storage", {{"storage", measure}}, log);
}

}  // namespace

void add_storage(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<StorageFlags>();
  CLI::App* sub = group.add_subcommand(
      "storage", "the disk under a directory: reads and writes over sizes and ranks, fsync");
  add_machine_flags(*sub, flags->machine);
  sub->add_option("--dir", flags->machine.directory, "a directory on the disk to measure")
      ->capture_default_str();
  sub->add_option("--recipe", flags->recipe,
                  "also what this run needs, and how its loader's reads are scattered");
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--step-seconds", flags->options.step_s, "time of a step of that run");
  sub->add_option("--run-ranks", flags->options.run_ranks,
                  "ranks of that run; 0: as many as measure")
      ->capture_default_str();
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_storage(*flags, log); }; });
}

}  // namespace ashlar::cli
