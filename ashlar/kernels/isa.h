// The instruction sets that kernels have paths for, those that this CPU supports, and the one in
// use.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ashlar::kernels {

// Instruction sets that have their own path, worst to best.
enum class Isa : uint8_t { kX86_64, kAvx2, kAvx512, kAvx512Bf16, kAmx };
std::string_view name_of(Isa isa);  // "x86-64", "avx2", "avx512", "avx512-bf16", "amx"

std::vector<Isa> supported_isas();  // those of this CPU, worst first; never empty
// The instruction set in use.  A property of the process, fixed at start: the best supported, or
// the one named by ASHLAR_ISA (kConfig with the legal values if unknown or unsupported).
Isa isa();
Isa choose_isa(std::string_view wish);  // the one that ASHLAR_ISA=wish selects; "": the best
void select_isa(Isa isa);  // must be supported; before any kernel runs, or between tests

}  // namespace ashlar::kernels
