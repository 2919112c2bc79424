// ashlar info: build, CPU features, kernel paths, threads.
#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::cli {

void add_info(CLI::App& app, CommandAction& action) {
  CLI::App* info = app.add_subcommand("info", "build, CPU features, kernel paths, threads");
  info->callback([&action] {
    action = [](Log&) {
      std::string supported;
      for (const kernels::Isa isa : kernels::supported_isas())
        supported += (supported.empty() ? "" : " ") + std::string(kernels::name_of(isa));
      print_result(
          fmt::format("ashlar {} ({}, {})", ASHLAR_VERSION, ASHLAR_BUILD_TYPE, ASHLAR_COMPILER));
      print_result(fmt::format("kernel paths  {}", supported));
      print_result(fmt::format("in use        {} (ASHLAR_ISA chooses another)",
                               kernels::name_of(kernels::isa())));
      print_result(fmt::format("precision     auto is {} here",
                               kernels::bf16_is_faster() ? "bf16" : "fp32: bf16 is no faster"));
      print_result(fmt::format("threads       {}", Threads(0).size()));
      return 0;
    };
  });
}

}  // namespace ashlar::cli
