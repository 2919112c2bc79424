// ashlar plan compare TRACE_DIR SIMULATED [--json FILE]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/cli/plan.h"
#include "ashlar/core/files.h"
#include "ashlar/plan/compare.h"

namespace ashlar::cli {
namespace {

struct CompareFlags {
  std::string traces, simulated, json;
  Existing existing = Existing::kRefuseUnlessForced;
};

int run_compare(const CompareFlags& flags) {
  const auto files = posix_files();
  const bool json_to_stdout = flags.json == "-";
  Outputs outputs(*files, {json_to_stdout ? "" : flags.json}, {flags.simulated}, flags.existing);
  const plan::StepSums recorded = plan::recorded_sums(*files, flags.traces),
                       simulated = plan::simulated_sums(*files, flags.simulated);
  const plan::MemoryRow memory = plan::memory_row(*files, flags.traces);
  const std::string json = plan::comparison_json(recorded, simulated, memory);
  if (!flags.json.empty() && !json_to_stdout) outputs.write(flags.json, json + "\n");
  outputs.publish();
  if (json_to_stdout)
    print_json(json);
  else
    print_lines(plan::describe_comparison(recorded, simulated, memory));
  return 0;
}

}  // namespace

void add_plan_compare(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<CompareFlags>();
  CLI::App* sub =
      group.add_subcommand("compare", "where a simulated step and the steps of a run part");
  sub->add_option("TRACE_DIR", flags->traces,
                  "directory of the run, or of its trace files (train.trace_steps)")
      ->required();
  sub->add_option("SIMULATED", flags->simulated,
                  "timeline of the same layout (ashlar plan simulate --perfetto)")
      ->required();
  sub->add_option("--json", flags->json, "also write JSON into this file; -: to stdout instead");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] { action = [flags](Log&) { return run_compare(*flags); }; });
}

}  // namespace ashlar::cli
