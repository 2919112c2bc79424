// The subcommands of `ashlar bench` that characterize a machine: their common flags, and how they
// run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/bench/machine/session.h"
#include "ashlar/cli/command.h"

namespace ashlar::cli {

struct MachineFlags {
  int ranks = 1;
  int64_t threads = 0;
  bool native = false, quick = false, resume = false, strict = false, independent = false;
  double timeout_s = 30, budget_s = 0;
  int64_t cycles = 1;          // 0: until stopped
  bool native_beside = false;  // MPI's own collectives beside exact ones
  std::string json, csv, profile, directory = ".";
  std::string passing, failing;  // files of hosts
  Existing existing;
};
void add_machine_flags(CLI::App& app, MachineFlags& flags);

// Measures on the ranks, prints a part's table when it is done, writes the files, and returns the
// exit code of the verdict.
int run_machine(const MachineFlags& flags, const std::string& name,
                const std::vector<bench::PartCall>& calls, Log& log);

void add_machine_parts(CLI::App& group, CommandAction& action);  // and smoke, all
void add_collectives(CLI::App& group, CommandAction& action);
void add_kernels(CLI::App& group, CommandAction& action);
void add_compare(CLI::App& group, CommandAction& action);

}  // namespace ashlar::cli
