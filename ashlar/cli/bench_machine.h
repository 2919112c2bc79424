// The subcommands of `ashlar bench` that characterize a machine: their common flags, and how they
// run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/bench/machine/recipe_products.h"
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
  std::string json, csv, profile, directory = ".", only, bind_to;
  std::string passing, failing;     // files of hosts
  std::vector<std::string> inputs;  // files that no output may replace
  std::string more;  // of the command, as a profile names it, before the common flags
  Existing existing;
};
void add_machine_flags(CLI::App& app, MachineFlags& flags);
// "machine.kernels.tsv" beside "machine.toml".
std::string file_beside(const std::string& profile, std::string_view ending);
// The recipe with the overrides and, in turn, those of each layout; without layouts its own.
std::vector<bench::Layout> layouts_of(const std::string& recipe,
                                      const std::vector<std::string>& overrides,
                                      const std::vector<std::string>& layouts);
// The meaning of --dtype for products: bf16 or fp32.
DType products_type(const std::string& dtype);

// Measures on the ranks, prints a part's table when it is done, writes the files, and returns the
// exit code of the verdict.
int run_machine(const MachineFlags& flags, const std::string& name,
                const std::vector<bench::PartCall>& calls, Log& log);

void add_machine_parts(CLI::App& group, CommandAction& action);  // and smoke, all
void add_storage(CLI::App& group, CommandAction& action);
void add_collectives(CLI::App& group, CommandAction& action);
void add_products(CLI::App& group, CommandAction& action);
void add_kernels(CLI::App& group, CommandAction& action);
void add_compare(CLI::App& group, CommandAction& action);

}  // namespace ashlar::cli
