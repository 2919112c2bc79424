#include "ashlar/train/compute_device.h"

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
  return precision == Precision::kAuto ? kernels::gpu::kAutoCompute
                                       : nn::resolve_precision(precision);
}

std::optional<DeviceSpec> choose_gpu(const Recipe& recipe, int num_ranks, Log& log) {
  if (recipe.train.device == TrainDevice::kCpu) return std::nullopt;
  return kernels::gpu::choose_gpu(
      {.option = "train.device",
       .choose_cpu = "train.device=cpu",
       .asked = recipe.train.device == TrainDevice::kGpu,
       .problem = recipe_problem(recipe, num_ranks)},
      [&](const DeviceSpec& spec) { require_functions(recipe, spec); }, log);
}

}  // namespace ashlar::train
