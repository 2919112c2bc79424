// A small recipe, and a profile on which its steps can be simulated.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/plan/simulate.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan {

inline Recipe tiny_recipe(const std::vector<std::string>& overrides) {
  const auto files = posix_files();
  return train::read_recipe(*files, ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// Two cores, a curve of every operation, rates for laws; no table of kernels.
inline constexpr const char* kMachine = R"(schema = "ashlar-machine-1"
name = "small"
date = "2026-11-26"
links = "switch"
[identity]
host = "small"
commit = "abc"
[node]
cores = { value = 2, unit = "1", source = "measured", from = "the system", date = "2026-11-26" }
[compute]
achievable_fp32 = { value = 0.1, unit = "TFLOP/s", source = "assumed", from = "a guess" }
[memory]
triad = { value = 10, unit = "GB/s", source = "measured", from = "stream", date = "2026-11-26" }
)";

inline std::string machine_text() {
  std::string text = kMachine;
  for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "send_receive"})
    text += fmt::format(
        "[[collective]]\nengine = \"thread\"\nop = \"{}\"\ndtype = \"F32\"\nshape = \"all\"\n"
        "ranks = 2\ngroups = 1\nsource = \"measured\"\nfrom = \"ashlar bench collectives\"\n"
        "date = \"2026-11-26\"\nforeign_share = 0.0\n"
        "points = [[1024, 5, 6, 7], [65536, 15, 20, 30], [1048576, 200, 250, 300]]\n",
        op);
  return text;
}

inline MachineFile small_machine() {
  return {machine::parse_profile(machine_text(), "small.toml"), {}};
}

}  // namespace ashlar::plan
