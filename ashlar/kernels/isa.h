// The instruction sets that kernels have paths for, what of them this CPU has, and which one is in
// use.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ashlar::kernels {

// Instruction sets with a path of their own, worst to best.
enum class Isa : uint8_t { kX86_64, kAvx2, kAvx512, kAvx512Bf16, kAmx };
std::string_view name_of(Isa isa);  // "x86-64", "avx2", "avx512", "avx512-bf16", "amx"

std::vector<Isa> supported_isas();  // of this CPU, worst first; never empty
// The one in use.  A property of the process, fixed at start: the best supported, or what
// ASHLAR_ISA names (kConfig with the legal values if unknown or unsupported).
Isa isa();
Isa choose_isa(std::string_view wish);  // what ASHLAR_ISA=wish selects; "": the best supported
void select_isa(Isa isa);  // must be supported; before any kernel runs, or between tests

}  // namespace ashlar::kernels
