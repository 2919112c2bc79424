// index.bin: which file holds which box of which tensor, with CRC32C of every 4 MiB of every file.
// docs/formats/checkpoint.md gives the byte layout and a worked example.
//
// build_index and parse_index are pure functions on bytes; parse(build(x)) gives x, and
// build(parse(bytes)) gives bytes that build_index made.  The parser trusts nothing: it checks
// every count against its section before it takes memory, and every reference, box and byte range
// against its target.
//
// Errors  kCorrupt: "PATH: section and element: value found; what is expected".  build_index:
//         kConfig if a limit is exceeded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

inline constexpr int kChunkLog2 = 22;
inline constexpr int64_t kChunkBytes = int64_t(1) << kChunkLog2;  // one CRC each; the unit of I/O

// Limits for the reader, which takes no more memory, and for the writer.
inline constexpr int64_t kMaxIndexBytes = int64_t(1) << 30;
inline constexpr int64_t kMaxBlobBytes = int64_t(256) << 20;  // of one extra file

enum class Component : uint16_t { kModel, kOptim, kLoader, kExtra };
inline constexpr int kNumComponents = 4;
std::string_view name_of(Component component);  // "model": the directory of its files

enum class FileKind : uint16_t { kSafetensors, kJson, kBlob };

struct IndexFile {
  std::string path;  // relative to the step directory
  Component component = Component::kModel;
  FileKind kind = FileKind::kSafetensors;
  uint32_t writer = 1;                     // writer_number (layout.h)
  int64_t size_bytes = 0, data_begin = 0;  // data_begin 0: no header
  uint32_t header_crc = 0;                 // CRC32C of [0, data_begin); 0 without a header
  std::vector<uint32_t> chunk_crcs;        // ceil(size / 4 MiB)
  Id uuid{};
  size_t writer_rank() const { return writer - size_t(writer_number(0)); }
};

struct IndexBox {
  uint32_t file = 0;  // into Index::files
  Box box;
  int64_t byte_offset = 0;  // from the start of the file; a multiple of the element size
  std::optional<uint32_t> crc;
  int64_t max_end0 = 0;  // set by parse_index: the largest end in dim 0 of this and earlier boxes
};

struct IndexTensor {
  LogicalTensor logical;
  uint32_t parent = ~uint32_t(0);  // the parameter of a state or scale: into Index::tensors
  bool alias = false;              // its boxes are another tensor's bytes
  std::vector<IndexBox> boxes;     // sorted by offset
  Id content_hash{};               // zero: absent
};

struct IndexBlob {
  std::string name;
  bool json = false;
  uint32_t file = 0;
  int64_t offset = 0, length = 0;
  uint32_t crc = 0;
};

struct Index {
  Id attempt{};
  std::vector<IndexFile> files;
  std::vector<IndexTensor> tensors;
  std::vector<IndexBlob> blobs;
};

std::vector<std::byte> build_index(const Index& index);
// The number of elements in each section of index.bin, by section number (index_format.h), and the
// size of such an index.
using SectionCounts = std::array<int64_t, 10>;
int64_t index_bytes(const SectionCounts& counts);
Index parse_index(std::span<const std::byte> bytes, const std::string& path);

// The boxes of a parsed tensor that overlap `box` in dim 0, and perhaps some between them.
// O(log boxes).
std::span<const IndexBox> boxes_near(const IndexTensor& tensor, const Box& box);

int64_t num_chunks(int64_t size_bytes);  // ceil(size / 4 MiB)
int64_t bytes_of(const Index& index);    // of all its files
// The component that the tensor's bytes are in.
Component component_of(const Index& index, const IndexTensor& tensor);

}  // namespace ashlar::checkpoint
