#include "ashlar/kernels/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::kernels {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"x86-64", "avx2", "avx512", "avx512-bf16",
                                                    "amx"};

#if defined(__x86_64__)
// State components that the system saves for us (register XCR0).
uint64_t saved_state() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kOsxsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsxsave)) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

// Tiles need the CPU, the system's support and, since Linux 5.16, the process's own request.
bool amx_usable() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr uint64_t kTileState = 3u << 17;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & kAmxBf16) || !(edx & kAmxTile)) return false;
  if ((saved_state() & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023,
                 kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::vector<Isa> detect() {
  std::vector<Isa> isas = {Isa::kX86_64};
  __builtin_cpu_init();
  // Features that the compiler and Highway assume together with AVX2; every such CPU has them all.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
    return isas;
  isas.push_back(Isa::kAvx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512cd"))
    return isas;
  isas.push_back(Isa::kAvx512);
  if (!__builtin_cpu_supports("avx512bf16")) return isas;
  isas.push_back(Isa::kAvx512Bf16);
  // Kernels for tiles assume AVX-512 VBMI, which every CPU with tiles has.
  if (__builtin_cpu_supports("avx512vbmi") && amx_usable()) isas.push_back(Isa::kAmx);
  return isas;
}
#else
std::vector<Isa> detect() {
  return {Isa::kX86_64};
}
#endif

const std::vector<Isa>& detected() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

bool is_supported(Isa isa) {
  for (const Isa known : detected())
    if (known == isa) return true;
  return false;
}

std::string supported_names() {
  std::string names;
  for (const Isa isa : detected())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(isa));
  return names;
}

// A property of the process, like the instruction set of the machine.
std::atomic<Isa>& current() {
  static std::atomic<Isa> isa = [] {
    const char* wish = std::getenv("ASHLAR_ISA");
    return choose_isa(wish ? wish : "");
  }();
  return isa;
}

}  // namespace

std::string_view name_of(Isa isa) {
  return kNames[size_t(isa)];
}

Isa choose_isa(std::string_view wish) {
  if (wish.empty()) return detected().back();
  const std::vector<std::string> known(kNames.begin(), kNames.end());
  const auto at = std::find(known.begin(), known.end(), wish);
  ASHLAR_REQUIRE(at != known.end(), kConfig,
                 "ASHLAR_ISA is '{}', an unknown instruction set; this CPU has: {}{}", wish,
                 supported_names(), suggestion(wish, known));
  const auto isa = Isa(at - known.begin());
  ASHLAR_REQUIRE(is_supported(isa), kConfig,
                 "ASHLAR_ISA is {}, which this CPU does not have; choose one of: {}", wish,
                 supported_names());
  return isa;
}

std::vector<Isa> supported_isas() {
  return detected();
}

Isa isa() {
  return current().load(std::memory_order_relaxed);
}

void select_isa(Isa isa) {
  ASHLAR_ASSERT(is_supported(isa));
  current().store(isa, std::memory_order_relaxed);
}

}  // namespace ashlar::kernels
