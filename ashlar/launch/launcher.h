// Runs a recipe's ranks until the run is done, whatever ends them in between (docs/survive.md).
//
// This is the part with side effects: it turns what the processes, their pulse and the signals say
// into events of the Policy, and carries its actions out.
//
// Errors  kConfig if another launcher holds the run directory; kLaunch if a start is impossible.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/launch/attempt.h"
#include "ashlar/launch/fleet.h"
#include "ashlar/launch/policy.h"

namespace ashlar::launch {

struct LaunchPlan {
  LaunchSpec limits;
  std::string run_directory;
  std::string checkpoints;   // the root of its steps
  std::string metrics = {};  // address of the MetricsServer; "": none
  double step_s = 0;         // time of a step as a plan has it; 0: unknown
  // Makes the command of an attempt that goes back to from_step (nullopt: to the newest step) and
  // trains with rate_factor times the recipe's learning rate.
  std::function<AttemptCommand(std::optional<int64_t> from_step, double rate_factor)> command;
  Fleet* fleet = nullptr;  // several machines
};

struct LaunchResult {
  int exit_code = 0;      // 0, that of the cause, or kSpentExitCode
  std::string reason;     // why it gave up; "": it did not
  bool resigned = false;  // the run goes on under another leader
};
LaunchResult run_launch(const LaunchPlan& plan, FileSystem& files, Log& log);

}  // namespace ashlar::launch
