#include "ashlar/train/compute_device.h"

#include "ashlar/core/error.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan.h"

namespace ashlar::train {
namespace {

// Why no GPU runs the recipe, whatever GPU it is; "": one may.
std::string recipe_problem(const Recipe& recipe, int num_ranks) {
  if (num_ranks > 1)
    return fmt::format("there are {} ranks, and a GPU serves one so far", num_ranks);
  if (recipe.train.precision == Precision::kF64)
    return "train.precision is fp64, which GPUs do not compute here";
  return "";
}

// Plans a step, which calls every function that the run would call.
void require_functions(const Recipe& recipe, const DeviceSpec& spec) {
  plan_run(recipe, compute_on_gpu(recipe.train.precision), 1, 0, 0, ComputeDevice::gpu(spec));
}

}  // namespace

DType compute_on_gpu(Precision precision) {
  return precision == Precision::kAuto ? DType::kBF16 : nn::resolve_precision(precision);
}

std::optional<DeviceSpec> choose_gpu(const Recipe& recipe, int num_ranks, Log& log) {
  if (recipe.train.device == TrainDevice::kCpu) return std::nullopt;
  const bool asked = recipe.train.device == TrainDevice::kGpu;
  const std::string problem = recipe_problem(recipe, num_ranks);
  ASHLAR_REQUIRE(!asked || problem.empty(), kConfig,
                 "train.device is gpu, but {}; choose train.device=cpu", problem);
  std::optional<DeviceSpec> spec;
  try {
    spec = kernels::gpu::find_gpu();
    if (problem.empty()) require_functions(recipe, *spec);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDevice) throw;
    ASHLAR_REQUIRE(!asked, kDevice, "train.device is gpu, but {}; or choose train.device=cpu",
                   error.what());
    if (spec) log.info("train.device is auto: the CPU, for {}", error.what());
    return std::nullopt;
  }
  if (!asked)
    log.info("train.device is auto: {}",
             problem.empty() ? spec->name : fmt::format("the CPU, for {}", problem));
  return problem.empty() ? spec : std::nullopt;
}

GpuMemory::GpuMemory(int64_t device_bytes)
    : reservation_(device_bytes),
      device_(reservation_),
      pinned_(pinned_memory_),
      stream_(pinned_) {}

}  // namespace ashlar::train
