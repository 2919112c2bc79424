// ashlar report PATH... --out FILE.html [--baseline PROFILE] [--force]
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/files.h"
#include "ashlar/report/reports.h"

namespace ashlar::cli {

void add_report(CLI::App& app, CommandAction& action) {
  struct Flags {
    std::vector<std::string> paths;
    std::string out, baseline;
    Existing existing = Existing::kRefuseUnlessForced;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("report", "one HTML file about runs, machines or plans");
  sub->add_option(
         "PATH", flags->paths,
         "directory of a run (train.run_dir), profile of a machine (NAME.toml, or h100, ... "
         "of machines/), or plan (NAME.json of `plan dry-run, simulate or search --json`); several "
         "of a kind "
         "go over each other")
      ->required();
  sub->add_option("--out", flags->out, "the file to write")->required();
  sub->add_option("--baseline", flags->baseline,
                  "earlier profile with which those of PATH are compared; more than 5 % worse is a "
                  "regression");
  add_force(*sub, flags->existing);
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      check_out(flags->out);
      const auto files = posix_files();
      std::vector<std::string> inputs;
      for (const std::string& path : flags->paths)
        for (std::string& file : report::files_of(*files, path)) inputs.push_back(std::move(file));
      if (!flags->baseline.empty())
        for (std::string& file : report::files_of(*files, flags->baseline))
          inputs.push_back(std::move(file));
      Outputs outputs(*files, {flags->out}, inputs, flags->existing);
      outputs.write(flags->out,
                    report::to_html(report::page_of(*files, flags->paths, flags->baseline)));
      outputs.publish();
      log.info("wrote {}", flags->out);
      return 0;
    };
  });
}

}  // namespace ashlar::cli
