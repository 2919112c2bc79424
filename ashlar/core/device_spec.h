// A GPU as a value: what a plan, a kernel's launch or a report needs to know of a chip.
//
// Source   data sheets: NVIDIA A100 80 GB SXM (2021), H100 SXM (2023), H200 SXM (2024); AMD
//          Instinct MI250X (2021), MI300X (2023).  Shared memory: CUDA programming guide, limits by
//          compute capability; CDNA 2 and 3 ISA references.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ashlar {

struct DeviceSpec {
  std::string name;          // "h200"; of a card its driver's name for it
  std::string architecture;  // "sm_90", "gfx942"
  int64_t memory_bytes = 0;
  int compute_units = 0;     // that a kernel's blocks are spread over: SMs, CUs
  int64_t shared_bytes = 0;  // the most shared memory of a block
  int lanes = 0;             // of a warp
  // Peaks of products without sparsity, and of memory; 0: unknown.
  double bf16_flops = 0, fp32_flops = 0, bytes_a_second = 0;
  // Memory that libraries of dense products are given for a call, and what the driver, loaded code
  // and libraries take besides the memory of a run.  Assumed: no card has been measured yet.
  int64_t product_workspace_bytes = int64_t{32} << 20, reserved_bytes = int64_t{3} << 29;
};

// The chips that are known by name.  A card of MI250X appears as two: each die is a device.
std::span<const DeviceSpec> known_devices();
// null: none has this name.
const DeviceSpec* known_device(std::string_view name);
// The known chip that a card is, by its architecture, compute units and memory; null: none.
const DeviceSpec* chip_of(const DeviceSpec& card);

}  // namespace ashlar
