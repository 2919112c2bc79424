// How it works.  Every section grows in a buffer of its own while the builder walks files, tensors
// and blobs once.  An element that owns others writes the present count of their section as its
// `first_...`, then appends them, so that owned elements lie in the order of their owners, without
// gaps, as the parser requires.  assemble() then places the sections after header and table, all
// nine in the order of their kinds even if one is empty, and computes the checksums: one of each
// section for its row of the table, and one of header and table for the header.
#include <algorithm>
#include <cstring>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/index_format.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar::checkpoint {
namespace {

// Little-endian appends to one section.
class Out {
 public:
  template <typename T>
  void put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(std::byte(uint64_t(value) >> (8 * i)));
  }
  void put(const Id& id) {
    for (const uint8_t byte : id) bytes_.push_back(std::byte(byte));
  }
  void append(std::string_view text) {
    for (const char c : text) bytes_.push_back(std::byte(c));
  }
  void zeros(size_t count) { bytes_.resize(bytes_.size() + count); }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte>& mutable_bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class Builder {
 public:
  explicit Builder(const Index& index) : index_(index) {}

  std::vector<std::byte> build() {
    for (const IndexFile& file : index_.files) add(file);
    for (const IndexTensor& tensor : index_.tensors) add(tensor);
    for (const IndexBlob& blob : index_.blobs) add(blob);
    return assemble();
  }

 private:
  Out& at(IndexSection section) { return sections_[section - 1]; }
  uint64_t count(IndexSection section) {
    return at(section).bytes().size() / kElementBytes[section];
  }
  void put_text(IndexSection section, std::string_view text) {
    at(section).put(uint32_t(at(kStr).bytes().size()));
    at(section).put(uint32_t(text.size()));
    at(kStr).append(text);
  }

  void add(const IndexFile& file) {
    ASHLAR_ASSERT(int64_t(file.chunk_crcs.size()) == num_chunks(file.size_bytes));
    Out& out = at(kFile);
    put_text(kFile, file.path);
    out.put(uint16_t(file.component));
    out.put(uint16_t(file.kind));
    out.put(file.writer);
    out.put(file.size_bytes);
    out.put(file.data_begin);
    out.put(file.header_crc);
    out.put(uint32_t(kChunkLog2));
    out.put(count(kCrc));  // where the checksums, appended below, will begin
    out.put(uint64_t(file.chunk_crcs.size()));
    out.put(file.uuid);
    out.zeros(8);
    for (const uint32_t crc : file.chunk_crcs) at(kCrc).put(crc);
  }

  void add(const IndexTensor& tensor) {
    const Shape& shape = tensor.logical.global_shape;
    Out& out = at(kTensor);
    put_text(kTensor, tensor.logical.name);
    out.put(code_of_dtype(tensor.logical.dtype));
    out.put(uint8_t(shape.ndim()));
    out.put(uint8_t(tensor.logical.role));
    out.put(tensor.parent);
    out.put(uint32_t(0));  // row-major
    out.put(tensor.alias ? kTensorAlias : 0);
    out.put(count(kDim));
    out.put(count(kBox));
    out.put(uint64_t(tensor.boxes.size()));
    out.put(shape.numel());
    out.put(count(kSubpart));
    out.put(uint32_t(0));  // no parts
    out.zeros(4);
    out.put(tensor.content_hash);
    for (const int64_t extent : shape.dims()) at(kDim).put(extent);
    add_boxes(tensor);
  }

  void add_boxes(const IndexTensor& tensor) {
    int64_t max_end = 0;
    for (const IndexBox& piece : tensor.boxes) {
      const int ndim = piece.box.offset.ndim();
      ASHLAR_ASSERT(inside(piece.box, tensor.logical.global_shape));
      max_end = std::max(max_end, ndim ? piece.box.offset[0] + piece.box.length[0] : 1);
      Out& out = at(kBox);
      out.put(piece.file);
      out.put(piece.crc ? 0 : kBoxWithoutCrc);
      out.put(piece.byte_offset);
      out.put(piece.box.length.numel() * size_of(tensor.logical.dtype));
      out.put(count(kPair));
      out.put(piece.crc.value_or(0));
      out.zeros(4);
      out.put(max_end);
      for (int d = 0; d < ndim; ++d) {
        at(kPair).put(piece.box.offset[d]);
        at(kPair).put(piece.box.length[d]);
      }
    }
  }

  void add(const IndexBlob& blob) {
    Out& out = at(kBlob);
    put_text(kBlob, blob.name);
    out.put(uint32_t(blob.json));
    out.put(blob.file);
    out.put(blob.offset);
    out.put(blob.length);
    out.put(blob.crc);
    out.zeros(4);
  }

  std::vector<std::byte> assemble() {
    Out table, body;
    const int64_t body_begin = kIndexHeaderBytes + kNumSections * kSectionRowBytes;
    for (uint32_t kind = 1; kind <= kNumSections; ++kind) {
      const std::span<const std::byte> bytes = sections_[kind - 1].bytes();
      const size_t past = (size_t(body_begin) + body.bytes().size()) % kSectionAlignment;
      if (past) body.zeros(kSectionAlignment - past);
      table.put(kind);
      table.put(kElementBytes[kind]);
      table.put(uint64_t(body_begin) + body.bytes().size());
      table.put(uint64_t(bytes.size() / kElementBytes[kind]));
      table.put(crc32c(bytes));
      table.zeros(4);
      body.mutable_bytes().insert(body.mutable_bytes().end(), bytes.begin(), bytes.end());
    }
    Out file;
    file.append({kIndexMagic, 8});
    file.put(kIndexMajor);
    file.put(kIndexMinor);
    file.put(uint64_t(body_begin) + body.bytes().size());
    file.zeros(16);  // required and optional flags
    file.put(kNumSections);
    file.zeros(4);  // header CRC, below
    file.put(index_.attempt);
    std::vector<std::byte> bytes = std::move(file.mutable_bytes());
    bytes.insert(bytes.end(), table.bytes().begin(), table.bytes().end());
    const uint32_t crc = crc32c(bytes);
    // Computed while its own field was zero.
    for (size_t i = 0; i < 4; ++i) bytes[44 + i] = std::byte(crc >> (8 * i));
    bytes.insert(bytes.end(), body.bytes().begin(), body.bytes().end());
    return bytes;
  }

  const Index& index_;
  std::array<Out, kNumSections> sections_;
};

}  // namespace

std::string_view name_of(Component component) {
  constexpr std::string_view kNames[] = {"model", "optim", "loader", "extra"};
  return kNames[int(component)];
}

int64_t index_bytes(const SectionCounts& counts) {
  int64_t bytes = kIndexHeaderBytes + kNumSections * kSectionRowBytes;
  for (uint32_t kind = 1; kind <= kNumSections; ++kind)
    bytes = round_up(bytes, kSectionAlignment) + counts[kind] * kElementBytes[kind];
  return bytes;
}

int64_t num_chunks(int64_t size_bytes) {
  return (size_bytes + kChunkBytes - 1) >> kChunkLog2;
}

int64_t bytes_of(const Index& index) {
  int64_t bytes = 0;
  for (const IndexFile& file : index.files) bytes += file.size_bytes;
  return bytes;
}

Component component_of(const Index& index, const IndexTensor& tensor) {
  ASHLAR_ASSERT(!tensor.boxes.empty());
  return index.files[tensor.boxes[0].file].component;
}

std::vector<std::byte> build_index(const Index& index) {
  for (const IndexBlob& blob : index.blobs)
    ASHLAR_REQUIRE(blob.length <= kMaxBlobBytes, kConfig,
                   "the extra file '{}' has {} bytes; a step takes at most {}", blob.name,
                   blob.length, kMaxBlobBytes);
  std::vector<std::byte> bytes = Builder(index).build();
  ASHLAR_REQUIRE(int64_t(bytes.size()) <= kMaxIndexBytes, kConfig,
                 "{} of this step has {} bytes; at most {} can be read: its tensors are cut into "
                 "too many boxes (parallel.zero_layout=contiguous makes fewer)",
                 kIndexName, bytes.size(), kMaxIndexBytes);
  return bytes;
}

}  // namespace ashlar::checkpoint
