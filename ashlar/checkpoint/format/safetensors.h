// safetensors files: strict reading of an untrusted header, and deterministic header building.
//
//   file = u64 N (little-endian), N bytes of JSON, data
//   JSON = {"__metadata__": {string: string}, name: {"dtype": "F32", "shape": [2, 3],
//           "data_offsets": [begin, end]}, ...}            offsets count from the start of the data
//
// The JSON starts with '{' and may end in spaces.  The tensors, sorted by offset, tile the data
// from 0 to the end of the file without hole or overlap.  Limits: N <= 100,000,000; 2,000,000
// values in the JSON; names 1 to 4096 bytes of UTF-8; at most 16 dims; products checked for
// overflow.  Duplicate keys are errors.
//
// Errors  the kind is the caller's: kCorrupt for our checkpoints, kData for foreign files.
//         Messages read "PATH: place: value found; what is expected".  I/O itself fails with
//         kStorage.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::checkpoint {

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxHeaderValues = 2'000'000;  // of its JSON: some 200,000 tensors
inline constexpr int64_t kMaxNameBytes = 4096;
inline constexpr int kMaxDims = 16;
inline constexpr int64_t kAlignment = 4096;  // of our data regions and, where sizes allow, tensors

// nullopt: a name that no DType has.
std::optional<DType> dtype_from_name(std::string_view name);

// Bytes of shape x dtype; nullopt if a dim is negative or the product passes int64.
std::optional<int64_t> checked_bytes(std::span<const int64_t> shape, DType dtype);

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin = 0, end = 0;  // bytes from the start of the data
  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  int64_t data_begin = 0;            // 8 + N: where the data starts in the file
  std::vector<TensorEntry> entries;  // in file order
  std::map<std::string, std::string> metadata;
  const TensorEntry* find(std::string_view name) const;  // nullptr: absent (linear search)
};

// N of the first eight bytes, checked against the limit and the file's size.
int64_t parse_header_length(std::span<const std::byte> first_8, int64_t file_bytes,
                            const std::string& path, ErrorKind kind);

// `head` holds the file from its start, at least 8 + N bytes (the data need not be there).
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    const std::string& path, ErrorKind kind);

// Reads and parses the header of an open file.
SafetensorsHeader read_safetensors_header(const File& file, const std::string& path,
                                          ErrorKind kind);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

enum class HeaderStyle : uint8_t {
  // Data at a multiple of 4096; tensors by descending min(12, v2(bytes)), ties as given, so that
  // each starts at a multiple of 2^min(12, v2(bytes)) without padding.
  kAligned,
  kPlain,  // data at a multiple of 8; tensors in the given order
};

struct SafetensorsPlan {
  std::string header;                // N, JSON, padding: the file's first data_begin bytes
  std::vector<TensorEntry> entries;  // in file order
  int64_t data_begin = 0, file_bytes = 0;
};

// A pure function of its arguments.  Names must be unique.
SafetensorsPlan plan_safetensors(std::span<const TensorSpec> tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 HeaderStyle style);

// Exponent of the largest power of two that divides x, at most 12; 12 for 0.
int alignment_exponent(int64_t x);

}  // namespace ashlar::checkpoint
