// The subcommands of `ashlar plan` that have files of their own.
#pragma once

#include "ashlar/cli/command.h"

namespace ashlar::cli {

void add_check(CLI::App& group, CommandAction& action);
void add_widths(CLI::App& group, CommandAction& action);
void add_estimate(CLI::App& group, CommandAction& action);
void add_goodput(CLI::App& group, CommandAction& action);
void add_simulate(CLI::App& group, CommandAction& action);
void add_search(CLI::App& group, CommandAction& action);
void add_plan_compare(CLI::App& group, CommandAction& action);
void add_calibrate(CLI::App& group, CommandAction& action);

}  // namespace ashlar::cli
