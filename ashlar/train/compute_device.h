// The device of a run: the CPU, or a GPU with the memory that the plan grants.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ashlar/core/log.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// The members of a Context that depend on it.
struct ComputeDevice {
  const kernels::Ops* ops = &kernels::cpu::kOps;
  const DeviceSpec* spec = nullptr;        // of a GPU; null: the CPU
  kernels::gpu::Stream* stream = nullptr;  // of a GPU, except on meta

  static ComputeDevice gpu(const DeviceSpec& spec, kernels::gpu::Stream* stream = nullptr) {
    return {&kernels::gpu::kOps, &spec, stream};
  }
  int64_t align() const { return spec ? kGpuAlign : kHostAlign; }  // of its memory
};

// The GPU that a recipe's train.device means in this process; absent: the CPU.
// log: told which one, if the recipe leaves it open and there is a GPU.
// Errors   kConfig if the recipe asks for a GPU and for something that no GPU does; kDevice if it
//          asks for one that is not there, or for functions that GPUs do not have.
std::optional<DeviceSpec> choose_gpu(const Recipe& recipe, int num_ranks, Log& log);

// The type of the products of train.precision on that GPU.
DType compute_on_gpu(Precision precision);

// The memory of a run on a GPU: as much of the GPU's as the plan says, and pinned memory of the
// host.  It outlives the trainer.
class GpuMemory {
 public:
  explicit GpuMemory(int64_t device_bytes);
  Allocator& device() { return device_; }
  Allocator& pinned() { return pinned_; }
  kernels::gpu::Stream& stream() { return stream_; }

 private:
  kernels::gpu::Reservation reservation_;
  Allocator device_;
  kernels::gpu::PinnedMemory pinned_memory_;
  Allocator pinned_;
  kernels::gpu::Stream stream_;
};

}  // namespace ashlar::train
