#include "ashlar/core/device_spec.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ashlar {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int64_t kGB = 1'000'000'000;

const std::array<DeviceSpec, 5>& chips() {
  static const std::array<DeviceSpec, 5> list = {{
      {.name = "a100",
       .architecture = "sm_80",
       .memory_bytes = 80 * kGB,
       .compute_units = 108,
       .shared_bytes = 163 * kKiB,
       .lanes = 32,
       .bf16_flops = 312e12,
       .fp32_flops = 19.5e12,
       .bytes_a_second = 2.039e12},
      {.name = "h100",
       .architecture = "sm_90",
       .memory_bytes = 80 * kGB,
       .compute_units = 132,
       .shared_bytes = 227 * kKiB,
       .lanes = 32,
       .bf16_flops = 989.4e12,
       .fp32_flops = 66.9e12,
       .bytes_a_second = 3.35e12},
      {.name = "h200",
       .architecture = "sm_90",
       .memory_bytes = 141 * kGB,
       .compute_units = 132,
       .shared_bytes = 227 * kKiB,
       .lanes = 32,
       .bf16_flops = 989.4e12,
       .fp32_flops = 66.9e12,
       .bytes_a_second = 4.8e12},
      {.name = "mi250x",  // one of its two dies
       .architecture = "gfx90a",
       .memory_bytes = 64 * kGB,
       .compute_units = 110,
       .shared_bytes = 64 * kKiB,
       .lanes = 64,
       .bf16_flops = 191.5e12,
       .fp32_flops = 23.95e12,
       .bytes_a_second = 1.6e12,
       .product_workspace_bytes = 80 * kMiB},
      {.name = "mi300x",
       .architecture = "gfx942",
       .memory_bytes = 192 * kGB,
       .compute_units = 304,
       .shared_bytes = 64 * kKiB,
       .lanes = 64,
       .bf16_flops = 1307.4e12,
       .fp32_flops = 163.4e12,
       .bytes_a_second = 5.3e12,
       .product_workspace_bytes = 80 * kMiB},
  }};
  return list;
}

template <typename Is>
const DeviceSpec* first_chip(Is is) {
  const auto found = std::find_if(chips().begin(), chips().end(), is);
  return found == chips().end() ? nullptr : &*found;
}

}  // namespace

std::span<const DeviceSpec> known_devices() {
  return chips();
}

const DeviceSpec* known_device(std::string_view name) {
  return first_chip([&](const DeviceSpec& chip) { return chip.name == name; });
}

// Drivers count memory in binary units, keep some of it for themselves, or both.
const DeviceSpec* chip_of(const DeviceSpec& card) {
  constexpr double kTolerance = 0.1;
  return first_chip([&](const DeviceSpec& chip) {
    const auto bytes = double(chip.memory_bytes);
    return chip.architecture == card.architecture && chip.compute_units == card.compute_units &&
           std::abs(double(card.memory_bytes) - bytes) < kTolerance * bytes;
  });
}

}  // namespace ashlar
