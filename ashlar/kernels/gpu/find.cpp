// The GPU that this program computes on.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ashlar/core/cards.h"
#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/device.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::kernels::gpu {
namespace {

// The architectures that kernels are compiled for (cmake/gpu.cmake).  Those of sm_80 would start on
// other chips of the 8s too, which have less shared memory than attention takes.
constexpr std::array<std::string_view, 4> kArchitectures{"sm_80", "sm_90", "gfx90a", "gfx942"};

DeviceSpec emulated_device(const std::string& chip) {
  const DeviceSpec* known = known_device(chip);
  ASHLAR_ASSERT(known);
  DeviceSpec spec = *known;
  spec.name = device::description();
  spec.memory_bytes = machine_memory_bytes();
  spec.reserved_bytes = 0;
  return spec;
}

}  // namespace

DeviceSpec find_gpu() {
  const std::string reason = device::missing();
  ASHLAR_REQUIRE(reason.empty(), kDevice, "{}", reason);
  if (const std::string chip = device::emulated_chip(); !chip.empty()) return emulated_device(chip);
  const Cards cards = find_cards();
  const std::string_view family = device::vendor() == "AMD" ? "gfx" : "sm_";
  // The device of a process that chooses none is the first of its vendor.
  const auto found = std::find_if(
      cards.list.begin(), cards.list.end(),
      [&](const DeviceSpec& listed) { return listed.architecture.starts_with(family); });
  ASHLAR_REQUIRE(found != cards.list.end(), kDevice, "no driver describes a GPU of {}: {}",
                 device::vendor(), fmt::join(cards.reasons, "; "));
  const DeviceSpec& card = *found;
  ASHLAR_REQUIRE(std::find(kArchitectures.begin(), kArchitectures.end(), card.architecture) !=
                     kArchitectures.end(),
                 kDevice, "{} is of architecture {}, for which no kernel is compiled; expected {}",
                 card.name, card.architecture, fmt::join(kArchitectures, ", "));
  blas::table().description();  // loads the library of products
  return spec_of(card);
}

}  // namespace ashlar::kernels::gpu
