// ashlar bench kernels RECIPE.toml [--ranks N] [--layout "KEY=VALUE ..."]... [--profile FILE]
// [section.key=value]
#include <CLI/CLI.hpp>

#include "ashlar/bench/machine/kernels.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/files.h"
#include "ashlar/machine/profile.h"
#include "ashlar/train/start.h"

namespace ashlar::cli {
namespace {

struct KernelsFlags {
  std::string recipe, profile, bind_to;
  std::vector<std::string> overrides, layouts;
  int ranks = 1;
  int64_t steps = 5, rounds = 1;
};

// The profile names the table and its checksum, so the table is there before the profile is.
void keep_table(FileSystem& files, const bench::KernelTable& table, const KernelsFlags& flags,
                machine::Profile profile, int local_ranks) {
  if (profile.identity.empty()) profile = bench::describe_machine(local_ranks);
  const std::string path = file_beside(flags.profile, "kernels.tsv"), text = bench::to_tsv(table);
  write_text(files, path, text);
  profile.kernels = {last_part(path), xxh3_64(std::as_bytes(std::span(text)))};
  write_text(files, flags.profile, machine::to_toml(profile));
}

int run_kernels(const KernelsFlags& flags) {
  constexpr int64_t kMostSteps = 1000;
  ASHLAR_REQUIRE(flags.steps >= 1 && flags.steps <= kMostSteps, kConfig,
                 "--steps is {}; expected 1 to {}", flags.steps, kMostSteps);
  constexpr int64_t kMostRounds = 100;
  ASHLAR_REQUIRE(flags.rounds >= 1 && flags.rounds <= kMostRounds, kConfig,
                 "--rounds is {}; expected 1 to {}", flags.rounds, kMostRounds);
  const auto files = posix_files();
  std::vector<Recipe> layouts;
  for (const bench::Layout& layout : layouts_of(flags.recipe, flags.overrides, flags.layouts))
    layouts.push_back(layout.recipe);
  machine::Profile profile;
  if (!flags.profile.empty() && files->stat(flags.profile, LinkPolicy::kFollow)) {
    profile = machine::parse_profile(read_text(*files, flags.profile), flags.profile);
    bench::require_same_machine(profile, flags.profile);
  }
  bool disturbed = false;
  const train::Start start{.num_ranks = flags.ranks,
                           .report = print_error,
                           .binding = train::parse_binding(flags.bind_to)};
  train::start_ranks(layouts[0], start, [&](const train::RankResources& resources) {
    const bench::KernelTable table =
        bench::measure_kernels(layouts, resources, flags.steps, flags.rounds);
    if (resources.ranks.rank() != 0) return;
    print_lines(bench::to_text(table));
    disturbed = table.foreign.shown() > machine::kMaxForeignShare;
    if (!flags.profile.empty()) keep_table(*files, table, flags, profile, resources.local_ranks);
  });
  return disturbed ? machine::exit_code(machine::Verdict::kDisturbed, false) : 0;
}

}  // namespace

void add_kernels(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<KernelsFlags>();
  CLI::App* sub = group.add_subcommand(
      "kernels", "every distinct kernel call of a recipe's layouts, all ranks computing");
  sub->add_option("RECIPE", flags->recipe, "TOML file")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--layout", flags->layouts,
                  "overrides of one layout, \"KEY=VALUE KEY=VALUE\"; may be given several times")
      ->allow_extra_args(false);
  sub->add_option("--ranks", flags->ranks, "ranks, as threads of this process; 1 under mpirun")
      ->capture_default_str();
  add_bind_to(*sub, flags->bind_to);
  sub->add_option("--steps", flags->steps, "timed steps")->capture_default_str();
  sub->add_option("--rounds", flags->rounds, "times that all layouts are measured, in turn")
      ->capture_default_str();
  sub->add_option("--profile", flags->profile,
                  "write the table beside this profile, which names it");
  sub->callback([flags, &action] { action = [flags](Log&) { return run_kernels(*flags); }; });
}

}  // namespace ashlar::cli
