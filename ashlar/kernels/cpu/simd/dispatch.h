// Selects among Highway's per-target builds of a function: the best one that isa() permits.
// Sources never use HWY_DYNAMIC_DISPATCH, which would ignore isa().
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/norm_fast.cpp"  // this very file
//   #include "ashlar/kernels/cpu/simd/dispatch.h"             // before any header of Highway
//   #include "hwy/foreach_target.h"
//   #include "hwy/highway.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace ashlar::kernels::cpu::HWY_NAMESPACE { void norm_rows(...) {...} }  // once per target
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace ashlar::kernels::cpu {
//   HWY_EXPORT(norm_rows);
//   void norm(...) { dispatch(HWY_DISPATCH_TABLE(norm_rows))(...); }
//   }
//   #endif
#pragma once

#define HWY_DISABLED_TARGETS HWY_SSSE3  // a CPU without AVX2 takes SSE4, else the scalar build
#define HWY_WANT_AVX3_DL                // runs from Isa::kAvx512Bf16 on: it may convert to bf16
#include <array>

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/isa.h"
#include "hwy/targets.h"

namespace ashlar::kernels::cpu {

// Highway's targets that an instruction set may use.  "x86-64" takes SSE4 where the CPU has it.
inline int64_t highway_targets(Isa isa) {
  switch (isa) {
    case Isa::kX86_64:
      return ~(HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL);
    case Isa::kAvx2:
      return ~(HWY_AVX3 | HWY_AVX3_DL);
    case Isa::kAvx512:
      return ~HWY_AVX3_DL;
    default:
      return ~int64_t{0};
  }
}

// The index of isa()'s build in a table of HWY_EXPORT, cached because asking the CPU is slow.
inline size_t dispatch_index() {
  static const std::array<size_t, 4> index = [] {
    std::array<size_t, 4> result{};
    for (const Isa isa : {Isa::kX86_64, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      hwy::ChosenTarget chosen;
      chosen.Update(hwy::SupportedTargets() & highway_targets(isa));
      result[size_t(isa)] = chosen.GetIndex();
    }
    return result;
  }();
  return index[std::min(size_t(isa()), index.size() - 1)];
}

template <typename F>
F* dispatch(F* const* table) {
  return table[dispatch_index()];
}

}  // namespace ashlar::kernels::cpu
