#include "ashlar/cli/compute_flags.h"

#include <CLI/CLI.hpp>

namespace ashlar::cli {

void add_compute_flags(CLI::App& app, eval::ComputeFlags& flags) {
  app.add_option("--device", flags.device,
                 "cpu, gpu, or auto: a GPU if there is one that has every function of the model")
      ->capture_default_str();
  app.add_option("--dtype", flags.dtype, "auto, bf16, fp32 or fp64")->capture_default_str();
  app.add_option("--threads", flags.threads, "0: one per CPU")->capture_default_str();
}

}  // namespace ashlar::cli
