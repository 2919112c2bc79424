// Helpers of the verbs of `ashlar ckpt`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/cli/command.h"
#include "ashlar/core/files.h"

namespace ashlar::cli {

// Each adds its verbs to the group.
void add_ckpt_inspection(CLI::App& group, CommandAction& action);  // list, show, verify
void add_ckpt_keeping(CLI::App& group, CommandAction& action);     // pin, unpin, prune
void add_ckpt_conversion(CLI::App& group, CommandAction& action);  // import, export
void add_ckpt_diff(CLI::App& group, CommandAction& action);
void add_ckpt_average(CLI::App& group, CommandAction& action);

// Adds a verb whose flags are parsed into `flags` and passed to run().
template <typename Flags>
CLI::App* add_verb(CLI::App& group, CommandAction& action, const char* name, const char* summary,
                   const std::shared_ptr<Flags>& flags, int (*run)(const Flags&, Log&)) {
  CLI::App* verb = group.add_subcommand(name, summary);
  verb->callback(
      [flags, run, &action] { action = [flags, run](Log& log) { return run(*flags, log); }; });
  return verb;
}

// How a step's save spent its time: a table of ranks and phases, or JSON.
void print_timeline(const checkpoint::StepReader& reader, bool json);

// kConfig if `out` lies in a step, which stays as it was committed.
void require_outside_steps(FileSystem& files, const std::string& out);
// kConfig if `root` is the directory `model` or lies in it.
void require_outside(const std::string& root, const std::string& model);

}  // namespace ashlar::cli
