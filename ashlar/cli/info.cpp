// ashlar info: build, CPU features, kernel paths, threads, GPUs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/cards.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::cli {
namespace {

std::string describe_card(const DeviceSpec& card) {
  std::string text = fmt::format("{}, {}, {} compute units, {}", card.name, card.architecture,
                                 card.compute_units, format_bytes(card.memory_bytes));
  if (const DeviceSpec* chip = chip_of(card))
    text += fmt::format("; peaks of {}: {:.0f} TFLOP/s in bf16, {:.0f} in fp32, {:.2f} TB/s",
                        chip->name, chip->bf16_flops * 1e-12, chip->fp32_flops * 1e-12,
                        chip->bytes_a_second * 1e-12);
  return text;
}

void print_gpus() {
  const Cards cards = find_cards();
  if (cards.list.empty())
    return print_result(fmt::format("GPUs          none: {}", fmt::join(cards.reasons, "; ")));
  print_result(fmt::format("GPUs          {}, which this version does not use", cards.list.size()));
  for (const DeviceSpec& card : cards.list) print_result("              " + describe_card(card));
  if (!cards.nvidia_driver.empty())
    print_result(fmt::format("              driver for CUDA {}", cards.nvidia_driver));
  for (const GpuLibrary& library : find_gpu_libraries())
    print_result(fmt::format("              {} {} ({})", library.name,
                             library.version.empty() ? "of unknown version" : library.version,
                             library.file));
}

}  // namespace

void add_info(CLI::App& app, CommandAction& action) {
  CLI::App* info = app.add_subcommand("info", "build, CPU features, kernel paths, threads, GPUs");
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
      print_gpus();
      return 0;
    };
  });
}

}  // namespace ashlar::cli
