// ashlar info [--gpu N]: build, CPU features, kernel paths, threads, GPUs; or a GPU as a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "ashlar/cli/command.h"
#include "ashlar/core/cards.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/machine/device_file.h"

namespace ashlar::cli {
namespace {

std::string describe_card(const DeviceSpec& card, size_t number) {
  std::string text = fmt::format("{}, {}, {} compute units, {}", card.name, card.architecture,
                                 card.compute_units, format_bytes(card.memory_bytes));
  const DeviceSpec* chip = chip_of(card);
  if (!chip)
    return text + fmt::format(
                      "; no known chip: `ashlar info --gpu {} >FILE` describes it for "
                      "plan dry-run --device FILE",
                      number);
  return text + fmt::format("; peaks of {}: {:.0f} TFLOP/s in bf16, {:.0f} in fp32, {:.2f} TB/s",
                            chip->name, chip->bf16_flops * 1e-12, chip->fp32_flops * 1e-12,
                            chip->bytes_a_second * 1e-12);
}

// The GPU that a run with train.device=gpu would take, or the reason why there is none.
std::string use_of_gpus() {
  try {
    return "of which train.device=gpu takes " + kernels::gpu::find_gpu().name;
  } catch (const Error& error) {
    return fmt::format("which train.device=gpu does not take: {}", error.what());
  }
}

void print_gpus() {
  const Cards cards = find_cards();
  if (cards.list.empty())
    return print_result(fmt::format("GPUs          none: {}", fmt::join(cards.reasons, "; ")));
  print_result(fmt::format("GPUs          {}, {}", cards.list.size(), use_of_gpus()));
  for (size_t i = 0; i < cards.list.size(); ++i)
    print_result("              " + describe_card(cards.list[i], i));
  if (!cards.nvidia_driver.empty())
    print_result(fmt::format("              driver for CUDA {}", cards.nvidia_driver));
  for (const GpuLibrary& library : find_gpu_libraries())
    print_result(fmt::format("              {} {} ({})", library.name,
                             library.version.empty() ? "of unknown version" : library.version,
                             library.file));
}

void print_machine() {
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
}

void print_gpu_file(int number) {
  const Cards cards = find_cards();
  ASHLAR_REQUIRE(!cards.list.empty(), kDevice, "there is no GPU: {}",
                 fmt::join(cards.reasons, "; "));
  ASHLAR_REQUIRE(number >= 0 && size_t(number) < cards.list.size(), kConfig,
                 "--gpu is {}; expected 0 to {}, for drivers show {} GPUs", number,
                 cards.list.size() - 1, cards.list.size());
  print_lines(machine::device_text(spec_of(cards.list[size_t(number)])));
}

}  // namespace

void add_info(CLI::App& app, CommandAction& action) {
  CLI::App* info = app.add_subcommand("info", "build, CPU features, kernel paths, threads, GPUs");
  const auto gpu = std::make_shared<std::optional<int>>();
  info->add_option("--gpu", *gpu,
                   "print this GPU alone, counted from 0, as a file for plan dry-run --device");
  info->callback([gpu, &action] {
    action = [gpu](Log&) {
      *gpu ? print_gpu_file(**gpu) : print_machine();
      return 0;
    };
  });
}

}  // namespace ashlar::cli
