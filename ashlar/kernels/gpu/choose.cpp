// The choice between a GPU and the CPU.
#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/device.h"

namespace ashlar::kernels::gpu {

std::optional<DeviceSpec> choose_gpu(const GpuChoice& choice,
                                     function_ref<void(const DeviceSpec&)> require_functions,
                                     Log& log) {
  const std::string& problem = choice.problem;
  ASHLAR_REQUIRE(!choice.asked || problem.empty(), kConfig, "{} is gpu, but {}; choose {}",
                 choice.option, problem, choice.choose_cpu);
  std::optional<DeviceSpec> spec;
  try {
    spec = find_gpu();
    if (problem.empty()) require_functions(*spec);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDevice) throw;
    ASHLAR_REQUIRE(!choice.asked, kDevice, "{} is gpu, but {}; or choose {}", choice.option,
                   error.what(), choice.choose_cpu);
    // Where the runtime sees a GPU, the user learns why it is not taken.
    if (spec || device::missing().empty())
      log.warn("{} is auto: the CPU, for {}", choice.option, error.what());
    return std::nullopt;
  }
  if (!choice.asked)
    log.info("{} is auto: {}", choice.option,
             problem.empty() ? spec->name : fmt::format("the CPU, for {}", problem));
  return problem.empty() ? spec : std::nullopt;
}

void require_room(const MemoryCounts& planned, const DeviceSpec& gpu, std::string_view what,
                  std::string_view remedy) {
  const int64_t bytes = planned.total.peak_bytes;
  if (bytes + gpu.reserved_bytes <= gpu.memory_bytes) return;
  throw Error(ErrorKind::kMemory,
              fmt::format("{} takes {} on {}, which has {}, of which {} are left to its driver "
                          "and libraries; {}",
                          what, format_bytes(bytes), gpu.name, format_bytes(gpu.memory_bytes),
                          format_bytes(gpu.reserved_bytes), remedy),
              table_of(planned));
}

}  // namespace ashlar::kernels::gpu
