// ashlar status RUN_DIR [--json] [--follow]
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/files.h"
#include "ashlar/train/run_status.h"

namespace ashlar::cli {
namespace {

bool goes_on(train::RunState state) {
  return state == train::RunState::kRunning || state == train::RunState::kRecovering;
}

// On a terminal each picture of the run replaces the one before.
void show_status(const train::RunStatus& status, bool json, bool again) {
  constexpr const char* kClear = "\x1b[H\x1b[2J";
  if (json) return print_json(train::status_json(status));
  if (again) print_part(isatty(STDOUT_FILENO) ? kClear : "\n");
  print_lines(train::status_text(status));
}

}  // namespace

void add_status(CLI::App& app, CommandAction& action) {
  struct Flags {
    std::string run;
    bool json = false, follow = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("status", "what a run does at this moment, rank by rank");
  sub->add_option("RUN_DIR", flags->run, "directory of a run (train.run_dir)")->required();
  sub->add_flag("--json", flags->json, "one line of JSON (docs/survive.md)");
  sub->add_flag("--follow", flags->follow, "again every second, until the run ends");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      const auto files = posix_files();
      for (bool again = false;; again = true) {
        const train::RunStatus status = train::judge(train::read_facts(*files, flags->run));
        show_status(status, flags->json, again);
        if (!flags->follow || !goes_on(status.state)) return train::exit_code(status.state);
        files->pause(1.0);
      }
    };
  });
}

}  // namespace ashlar::cli
