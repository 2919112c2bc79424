// The device of a run: what train.device means.
#pragma once

#include <optional>

#include "ashlar/core/log.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

using kernels::ComputeDevice;
using kernels::gpu::GpuMemory;

// The GPU that a recipe's train.device means in this process; absent: the CPU.
// log: told which one, if the recipe leaves it open and there is a GPU.
// Errors   kConfig if the recipe asks for a GPU and for something that no GPU does; kDevice if it
//          asks for one that is not there, or for functions that GPUs do not have.
std::optional<DeviceSpec> choose_gpu(const Recipe& recipe, int num_ranks, Log& log);

// The type of the products of train.precision on that GPU.
DType compute_on_gpu(Precision precision);

}  // namespace ashlar::train
