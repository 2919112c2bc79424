// ashlar bench step RECIPE.toml [section.key=value ...]; ashlar bench linear-attention
// [--dtype bf16|fp32] [--tokens N]; ashlar bench ranks RECIPE.toml [--ranks N] [--overlap-study]
// [section.key=value ...]; ashlar bench memory RECIPE.toml [--ranks N] [--layout "KEY=VALUE
// ..."]... [--lengths N,...]; ashlar bench checkpoint [--workload NAME,...] [--dir DIR] [--ranks N]
// [--no-sync]
#include <CLI/CLI.hpp>

#include "ashlar/bench/checkpoint.h"
#include "ashlar/bench/linear_attention.h"
#include "ashlar/bench/memory.h"
#include "ashlar/bench/ranks.h"
#include "ashlar/bench/step.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/cli/command.h"
#include "ashlar/core/files.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/read_recipe.h"
#include "ashlar/train/start.h"

namespace ashlar::cli {
namespace {

void check_steps(int64_t steps) {
  constexpr int64_t kMost = 1'000'000;
  ASHLAR_REQUIRE(steps >= 1 && steps <= kMost, kConfig, "--steps is {}; expected 1 to {}", steps,
                 kMost);
}

void add_ranks(CLI::App& group, CommandAction& action) {
  struct Flags {
    std::string recipe;
    std::vector<std::string> overrides;
    std::string bind_to;
    int ranks = 1;
    bench::RanksOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group.add_subcommand(
      "ranks", "a training step on several ranks: time, bytes sent, communication hidden");
  sub->add_option("RECIPE", flags->recipe, "TOML file")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks", flags->ranks, "ranks, as threads of this process; 1 under mpirun")
      ->capture_default_str();
  add_bind_to(*sub, flags->bind_to);
  sub->add_option("--steps", flags->options.steps, "timed steps")->capture_default_str();
  sub->add_flag(
      "--overlap-study", flags->options.overlap_study,
      "also with parallel.overlap=false and without communication, three rounds of --steps");
  sub->add_option("--delay-bulk-ms", flags->options.delay_bulk_ms,
                  "hold up every operation of the data ranks, as a slow network would")
      ->capture_default_str();
  sub->add_flag(
      "--one-lane", flags->options.one_lane,
      "sums and keys queue behind the data ranks' operations, to measure what lanes gain");
  sub->add_flag("--json", flags->json, "one JSON line");
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      check_steps(flags->options.steps);
      const auto files = posix_files();
      const Recipe stated = train::read_recipe(*files, flags->recipe, flags->overrides);
      const train::Start start{.num_ranks = flags->ranks,
                               .report = print_error,
                               .binding = train::parse_binding(flags->bind_to)};
      flags->options.engine = train::engine_of(start);
      train::start_ranks(stated, start, [&](const train::RankResources& resources) {
        const Recipe recipe = train::with_bucket_bytes(*files, stated, resources.ranks);
        const bench::RanksReport report = bench::measure_ranks(recipe, resources, flags->options);
        if (resources.ranks.rank() != 0) return;
        log.info("placement: {}", resources.placement);
        print_lines(flags->json ? bench::to_json_line(report, recipe)
                                : bench::to_text(report, recipe));
      });
      return 0;
    };
  });
}

void add_memory(CLI::App& group, CommandAction& action) {
  struct Flags {
    std::string recipe, svg, svg_times, bind_to;
    std::vector<std::string> overrides;
    bench::MemoryOptions options;
    bool json = false;
    Existing existing;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group.add_subcommand(
      "memory", "peak memory and time of real steps: layouts over lengths of a sequence");
  sub->add_option("RECIPE", flags->recipe, "TOML file")->required();
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--ranks", flags->options.num_ranks, "ranks, as threads of this process")
      ->capture_default_str();
  add_bind_to(*sub, flags->bind_to);
  sub->add_option("--layout", flags->options.layouts,
                  "overrides of one layout, \"KEY=VALUE KEY=VALUE\"; may be given several times")
      ->allow_extra_args(false);
  sub->add_option("--lengths", flags->options.lengths, "sequence lengths, with commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--steps", flags->options.steps, "steps of each")->capture_default_str();
  sub->add_option("--svg", flags->svg, "a plot of the peaks, a line for each layout");
  sub->add_option("--svg-times", flags->svg_times, "a plot of the steps' median times");
  add_force(*sub, flags->existing);
  sub->add_flag("--json", flags->json, "a JSON line for each");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      check_steps(flags->options.steps);
      flags->options.binding = train::parse_binding(flags->bind_to);
      for (const int64_t length : flags->options.lengths)
        ASHLAR_REQUIRE(length >= 1, kConfig, "--lengths has {}; expected 1 or more", length);
      const auto files = posix_files();
      Outputs outputs(*files, {flags->svg, flags->svg_times}, {flags->recipe}, flags->existing);
      const auto recipe_with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), flags->overrides.begin(), flags->overrides.end());
        return train::with_bucket_bytes(*files, train::read_recipe(*files, flags->recipe, more),
                                        flags->options.num_ranks);
      };
      const Recipe recipe = recipe_with({});
      if (!flags->json) print_lines(bench::memory_head(flags->options));
      const auto cases =
          bench::measure_memory(recipe_with, flags->options, [&](const bench::MemoryCase& c) {
            print_lines(flags->json ? bench::to_json_line(c, recipe)
                                    : bench::to_text(c, flags->options));
          });
      const std::string title = fmt::format("{}, {} ranks", recipe.name, flags->options.num_ranks);
      if (!flags->svg.empty()) outputs.write(flags->svg, bench::to_svg(cases, title));
      if (!flags->svg_times.empty())
        outputs.write(flags->svg_times, bench::times_to_svg(cases, title));
      outputs.publish();
      return 0;
    };
  });
}

void add_checkpoint(CLI::App& group, CommandAction& action) {
  struct Flags {
    bench::CheckpointBenchOptions options;
    double gib = 3;
    bool json = false, no_sync = false, no_baselines = false, list = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group.add_subcommand(
      "checkpoint", "saving and loading of made-up states: time, blocking, beside the disk itself");
  sub->add_option("--workload", flags->options.workloads,
                  "small, large, copies, flat, experts, grid, gather; with commas; default: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--dir", flags->options.directory,
                  "a directory on the disk to measure; made, and removed at the end")
      ->capture_default_str();
  sub->add_option("--gib", flags->gib, "of a state")->capture_default_str();
  sub->add_option("--ranks", flags->options.ranks, "ranks, as threads of this process")
      ->capture_default_str();
  sub->add_option("--repeats", flags->options.repeats, "saves of each")->capture_default_str();
  sub->add_option("--rest-seconds", flags->options.rest_s,
                  "of doing nothing before all that is timed: a disk with bursts has them again")
      ->capture_default_str();
  sub->add_option("--step-seconds", flags->options.step_s, "of computing around each save")
      ->capture_default_str();
  sub->add_flag("--no-sync", flags->no_sync, "wait for no disk, on either side");
  sub->add_flag("--no-baselines", flags->no_baselines, "without the raw disk and the plain save");
  sub->add_flag("--list", flags->list, "print the states, a JSON line each, and measure nothing");
  sub->add_flag("--json", flags->json, "a JSON line for each");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      bench::CheckpointBenchOptions& options = flags->options;
      constexpr int kMostRanks = 64, kMostRepeats = 1000;
      ASHLAR_REQUIRE(flags->gib > 0 && flags->gib <= 1024, kConfig,
                     "--gib is {}; expected above 0 to 1024", flags->gib);
      ASHLAR_REQUIRE(options.ranks >= 1 && options.ranks <= kMostRanks, kConfig,
                     "--ranks is {}; expected 1 to {}", options.ranks, kMostRanks);
      ASHLAR_REQUIRE(options.repeats >= 1 && options.repeats <= kMostRepeats, kConfig,
                     "--repeats is {}; expected 1 to {}", options.repeats, kMostRepeats);
      ASHLAR_REQUIRE(options.rest_s >= 0 && options.rest_s <= 1e3, kConfig,
                     "--rest-seconds is {}; expected 0 to 1000", options.rest_s);
      ASHLAR_REQUIRE(options.step_s >= 0 && options.step_s <= 1e3, kConfig,
                     "--step-seconds is {}; expected 0 to 1000", options.step_s);
      options.bytes = int64_t(flags->gib * double(int64_t(1) << 30));
      options.sync = !flags->no_sync;
      options.baselines = !flags->no_baselines;
      if (flags->list) {
        for (const auto& workload : bench::checkpoint_workloads(options.bytes, options.ranks))
          print_json(bench::describe(workload));
        return 0;
      }
      const auto files = posix_files();
      const Outputs free_name(*files, {options.directory}, {});
      if (!flags->json) print_lines(bench::checkpoint_head(options));
      bench::measure_checkpoints(options, [&](const bench::CheckpointRow& row) {
        print_lines(flags->json ? bench::to_json_line(row, options) : bench::to_text(row, options));
      });
      return 0;
    };
  });
}

void add_linear_attention(CLI::App& group, CommandAction& action) {
  struct Flags {
    std::string dtype = "auto";
    int threads = 0;
    int64_t tokens = 4096;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group.add_subcommand("linear-attention",
                                       "the recurrence of linear attention, forward and backward");
  sub->add_option("--dtype", flags->dtype, "auto, bf16 or fp32")->capture_default_str();
  sub->add_option("--tokens", flags->tokens, "length of the sequence")->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  sub->add_flag("--json", flags->json, "one JSON line");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      constexpr int64_t kMost = 1 << 20;
      ASHLAR_REQUIRE(flags->tokens >= 1 && flags->tokens <= kMost, kConfig,
                     "--tokens is {}; expected 1 to {}", flags->tokens, kMost);
      const bench::RecurrenceReport report =
          bench::measure_recurrences(flags->threads, products_type(flags->dtype), flags->tokens);
      print_lines(flags->json ? bench::to_json_line(report) : bench::to_text(report));
      return 0;
    };
  });
}

}  // namespace

void add_bench(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand("bench", "measure this machine against its floors");
  group->require_subcommand(1);
  struct Flags {
    std::string recipe, bind_to;
    std::vector<std::string> overrides;
    int64_t steps = 10;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* step =
      group->add_subcommand("step", "time of every kernel in real training steps of a recipe");
  step->add_option("RECIPE", flags->recipe, "TOML file")->required();
  step->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  step->add_option("--steps", flags->steps, "timed steps")->capture_default_str();
  step->add_flag("--json", flags->json, "one JSON line");
  add_bind_to(*step, flags->bind_to);
  step->callback([flags, &action] {
    action = [flags](Log&) {
      check_steps(flags->steps);
      const auto files = posix_files();
      const Recipe recipe = train::with_bucket_bytes(
          *files, train::read_recipe(*files, flags->recipe, flags->overrides), 1);
      const bench::StepReport report =
          bench::measure_step(recipe, flags->steps, train::parse_binding(flags->bind_to));
      print_lines(flags->json ? bench::to_json_line(report, recipe) : bench::to_text(report));
      return 0;
    };
  });

  add_ranks(*group, action);
  add_memory(*group, action);
  add_linear_attention(*group, action);
  add_checkpoint(*group, action);
  add_collectives(*group, action);
  add_storage(*group, action);
  add_machine_parts(*group, action);
  add_products(*group, action);
  add_kernels(*group, action);
  add_compare(*group, action);
  add_report(*group, action);
}

}  // namespace ashlar::cli
