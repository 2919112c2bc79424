// Numbers of index.bin that its builder and its parser share.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ashlar/tensor/dtype.h"

namespace ashlar::checkpoint {

inline constexpr char kIndexMagic[9] = "ASHIDX1\0";
inline constexpr int64_t kIndexHeaderBytes = 64, kSectionRowBytes = 32, kSectionAlignment = 64;
inline constexpr uint32_t kIndexMajor = 1, kIndexMinor = 0;
inline constexpr uint32_t kTensorAlias = 1, kBoxWithoutCrc = 1;

enum IndexSection : uint32_t { kStr = 1, kFile, kTensor, kDim, kBox, kPair, kCrc, kBlob, kSubpart };
inline constexpr uint32_t kNumSections = 9;
inline constexpr std::array<uint32_t, 10> kElementBytes{0, 1, 80, 88, 8, 48, 16, 4, 40, 64};
inline constexpr std::array<const char*, 10> kSectionNames{
    "", "STR", "FILE", "TENSOR", "DIM", "BOX", "PAIR", "CRC", "BLOB", "SUBPART"};

// On-disk dtype codes; 14 to 19 (8-, 6- and 4-bit floats) belong to types that this reader lacks.
inline constexpr std::array<DType, 14> kDTypeOfCode{
    DType::kF64, DType::kBool, DType::kU8,  DType::kI8,  DType::kU16,  DType::kI16, DType::kU32,
    DType::kI32, DType::kU64,  DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
inline std::optional<DType> dtype_of_code(uint16_t code) {
  if (code < 1 || code >= kDTypeOfCode.size()) return std::nullopt;
  return kDTypeOfCode[code];
}
inline uint16_t code_of_dtype(DType dtype) {
  uint16_t code = 1;
  while (kDTypeOfCode[code] != dtype) ++code;
  return code;
}

}  // namespace ashlar::checkpoint
