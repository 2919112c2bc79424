// How it works.  One pass over the elements, after the frame of the file was checked:
//
//   parse_header     magic, version, file size, room for the table; CRC32C of header and table
//   parse_sections   every section follows the one before it at the next multiple of 64, zeros
//                    between them, and its CRC32C is right; unknown kinds are skipped
//   parse_file, parse_tensor, parse_blob
//                    all elements of FILE, TENSOR and BLOB in order.  They claim() what they own
//                    in STR, DIM, BOX, PAIR, CRC and SUBPART
//   check_all_used, check_unique
//
// claim() keeps the invariant: used_[section] elements of a section have an owner, and the next
// owner's range begins there.  So no element has two owners, none is left over, and the parsed
// Index is larger than the file by at most a constant factor, whatever the counts say.  Whether
// boxes tile their tensor is checked by save_plan.cpp, verify.cpp and load.cpp, not here.
#include <algorithm>
#include <cstring>
#include <set>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/index_format.h"
#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/utf8.h"

namespace ashlar::checkpoint {
namespace {

struct SectionView {
  uint64_t offset = 0, count = 0;
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  Index parse() {
    parse_header();
    parse_sections();
    for (uint64_t i = 0; i < sections_[kFile].count; ++i) index_.files.push_back(parse_file(i));
    for (uint64_t i = 0; i < sections_[kTensor].count; ++i)
      index_.tensors.push_back(parse_tensor(i));
    for (uint64_t i = 0; i < sections_[kBlob].count; ++i) index_.blobs.push_back(parse_blob(i));
    check_all_used();
    check_unique();
    return std::move(index_);
  }

 private:
  // The byte at which the next value is read, and the name of that element in messages.
  struct Cursor {
    uint64_t at;
    std::string place;
  };

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    raise(ErrorKind::kCorrupt, "{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Byte by byte: nothing is aligned, and the format is little-endian on every machine.
  template <typename T>
  T load(uint64_t at) const {
    ASHLAR_ASSERT(at + sizeof(T) <= bytes_.size());
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= std::to_integer<uint64_t>(bytes_[at + i]) << (8 * i);
    return T(value);
  }
  template <typename T>
  T take(Cursor& in) const {
    const T value = load<T>(in.at);
    in.at += sizeof(T);
    return value;
  }
  int64_t take_size(Cursor& in, const char* field) const {
    const auto value = take<uint64_t>(in);
    if (value > uint64_t(INT64_MAX))
      fail("{}: {} is {}; at most 2^63-1 is possible", in.place, field, value);
    return int64_t(value);
  }
  void take_zero(Cursor& in, size_t num_bytes, const char* field) const {
    for (size_t i = 0; i < num_bytes; ++i)
      if (take<uint8_t>(in) != 0) fail("{}: {} is not zero", in.place, field);
  }
  Id take_id(Cursor& in) const {
    Id id;
    for (uint8_t& byte : id) byte = take<uint8_t>(in);
    return id;
  }
  template <typename T>
  void expect(T found, T expected, const Cursor& in, const char* field) const {
    if (found != expected) fail("{}: {} is {}; expected {}", in.place, field, found, expected);
  }

  Cursor element(IndexSection section, uint64_t index) const {
    ASHLAR_ASSERT(index < sections_[section].count);
    return {sections_[section].offset + index * kElementBytes[section],
            fmt::format("{} {}", kSectionNames[section], index)};
  }
  // Elements are written in the order of their owners, so each range starts where the last ended.
  // That also bounds memory: nothing is read twice.
  void claim(IndexSection section, uint64_t first, uint64_t count, const Cursor& in) {
    if (first != used_[section] || count > sections_[section].count - used_[section])
      fail("{}: {} [{}, +{}); expected to start at {} and end by {}", in.place,
           kSectionNames[section], first, count, used_[section], sections_[section].count);
    used_[section] += count;
  }

  std::string take_text(Cursor& in, const char* field) {
    const auto offset = take<uint32_t>(in);
    const auto length = take<uint32_t>(in);
    if (length == 0 || length > uint64_t(kMaxNameBytes))
      fail("{}: {} has {} bytes; expected 1 to {}", in.place, field, length, kMaxNameBytes);
    claim(kStr, offset, length, in);
    const std::string text(
        reinterpret_cast<const char*>(bytes_.data()) + sections_[kStr].offset + offset, length);
    if (check_utf8(text).num_invalid > 0) fail("{}: {} is not valid UTF-8", in.place, field);
    return text;
  }

  void parse_header() {
    if (bytes_.size() < uint64_t(kIndexHeaderBytes))
      fail("the file has {} bytes; an index has at least {}", bytes_.size(), kIndexHeaderBytes);
    if (std::memcmp(bytes_.data(), kIndexMagic, 8) != 0)
      fail("the first 8 bytes are not 'ASHIDX1'; this is not an index");
    const auto major = load<uint32_t>(8);
    if (major != kIndexMajor)
      fail("format version {} is unknown; this program reads version {} (little-endian)", major,
           kIndexMajor);
    if (load<uint64_t>(16) != bytes_.size())
      fail("the header says {} bytes but the file has {}", load<uint64_t>(16), bytes_.size());
    num_rows_ = load<uint32_t>(40);
    if (num_rows_ > (bytes_.size() - kIndexHeaderBytes) / kSectionRowBytes)
      fail("{} sections do not fit into {} bytes", num_rows_, bytes_.size());
    const auto table_end = size_t(kIndexHeaderBytes + num_rows_ * kSectionRowBytes);
    std::array<std::byte, kIndexHeaderBytes> header;
    std::copy_n(bytes_.begin(), header.size(), header.begin());
    std::fill_n(header.begin() + 44, 4, std::byte(0));  // the checksum counts itself as zero
    const uint32_t crc =
        crc32c(bytes_.subspan(header.size(), table_end - header.size()), crc32c(header));
    if (crc != load<uint32_t>(44))
      fail("the header's checksum is {:08x} but {:08x} was recorded; the file is damaged", crc,
           load<uint32_t>(44));
    // Optional flags (byte 32) and the minor version (byte 12) may have any value.
    if (const auto flags = load<uint64_t>(24); flags != 0)
      fail("required feature flags {:#x} are unknown; use a newer version of this program", flags);
    Cursor in{48, "header"};
    index_.attempt = take_id(in);
  }

  void parse_sections() {
    uint64_t end = uint64_t(kIndexHeaderBytes + num_rows_ * kSectionRowBytes);
    for (uint32_t row = 0; row < num_rows_; ++row) {
      Cursor in{uint64_t(kIndexHeaderBytes + row * kSectionRowBytes),
                fmt::format("section {}", row)};
      const auto kind = take<uint32_t>(in), element_bytes = take<uint32_t>(in);
      const auto offset = take<uint64_t>(in), count = take<uint64_t>(in);
      const auto crc = take<uint32_t>(in);
      take_zero(in, 4, "the reserved field");
      const uint64_t begin = (end + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
      expect(offset, begin, in, "offset");
      // A division instead of a product, which could overflow.
      if (begin > bytes_.size() || element_bytes == 0 ||
          count > (bytes_.size() - begin) / element_bytes)
        fail("{}: {} elements of {} bytes at {} pass the end of the file", in.place, count,
             element_bytes, offset);
      check_gap(end, begin, in);
      end = begin + count * element_bytes;
      const uint32_t found = crc32c(bytes_.subspan(begin, end - begin));
      if (found != crc)
        fail("{}: checksum is {:08x} but {:08x} was recorded; the file is damaged", in.place, found,
             crc);
      if (kind == 0 || kind > kNumSections)
        continue;  // an optional section of a later minor version
      expect(element_bytes, kElementBytes[kind], in, "element size");
      if (seen_[kind]) fail("{}: a second {} section", in.place, kSectionNames[kind]);
      seen_[kind] = true;
      sections_[kind] = {begin, count};
    }
    if (end != bytes_.size()) fail("{} bytes follow the last section", bytes_.size() - end);
  }

  void check_gap(uint64_t begin, uint64_t end, const Cursor& in) const {
    for (uint64_t at = begin; at < end; ++at)
      if (bytes_[at] != std::byte(0)) fail("{}: the gap before it is not zero", in.place);
  }

  IndexFile parse_file(uint64_t i) {
    Cursor in = element(kFile, i);
    IndexFile file;
    file.path = take_text(in, "path");
    in.place += fmt::format(" '{}'", file.path);
    if (!is_safe_path(file.path)) fail("{}: the path must be relative, without '..'", in.place);
    const auto component = take<uint16_t>(in), kind = take<uint16_t>(in);
    if (component >= kNumComponents) fail("{}: component {} is unknown", in.place, component);
    if (kind > uint16_t(FileKind::kBlob)) fail("{}: file kind {} is unknown", in.place, kind);
    file.component = Component(component);
    file.kind = FileKind(kind);
    file.writer = take<uint32_t>(in);
    file.size_bytes = take_size(in, "size");
    file.data_begin = take_size(in, "data_begin");
    if (file.data_begin > file.size_bytes)
      fail("{}: data begins at {} but the file has {} bytes", in.place, file.data_begin,
           file.size_bytes);
    file.header_crc = take<uint32_t>(in);
    expect(take<uint32_t>(in), uint32_t(kChunkLog2), in, "chunk_log2");
    const auto first = take<uint64_t>(in), count = take<uint64_t>(in);
    const uint64_t needed =
        uint64_t(file.size_bytes) / kChunkBytes + (uint64_t(file.size_bytes) % kChunkBytes != 0);
    expect(count, needed, in, "number of checksums");
    claim(kCrc, first, count, in);
    for (uint64_t c = 0; c < count; ++c)
      file.chunk_crcs.push_back(load<uint32_t>(sections_[kCrc].offset + (first + c) * 4));
    file.uuid = take_id(in);
    take_zero(in, 8, "the reference to a parent step");
    return file;
  }

  Shape parse_shape(uint64_t first, int ndim) const {
    Shape shape{
        std::span<const int64_t>(std::array<int64_t, Shape::kMaxDims>{}.data(), size_t(ndim))};
    for (int d = 0; d < ndim; ++d) {
      Cursor in = element(kDim, first + uint64_t(d));
      shape[d] = take_size(in, "extent");
    }
    return shape;
  }

  IndexTensor parse_tensor(uint64_t i) {
    Cursor in = element(kTensor, i);
    IndexTensor tensor;
    LogicalTensor& logical = tensor.logical;
    logical.name = take_text(in, "name");
    in.place += fmt::format(" '{}'", logical.name);
    const auto code = take<uint16_t>(in);
    const auto dtype = dtype_of_code(code);
    if (!dtype) fail("{}: dtype code {} is not one this program reads (1 to 13)", in.place, code);
    logical.dtype = *dtype;
    const int ndim = take<uint8_t>(in);
    if (ndim > Shape::kMaxDims)
      fail("{}: {} dims; at most {} can be read", in.place, ndim, Shape::kMaxDims);
    const auto role = take<uint8_t>(in);
    // The format has no role 3.
    if (role > uint8_t(Role::kLoader) || role == 3) fail("{}: role {} is unknown", in.place, role);
    logical.role = Role(role);
    tensor.parent = take<uint32_t>(in);
    if (tensor.parent != ~uint32_t(0) && tensor.parent >= sections_[kTensor].count)
      fail("{}: parent {} does not exist", in.place, tensor.parent);
    expect(take<uint32_t>(in), uint32_t(0), in, "layout");
    const auto flags = take<uint32_t>(in);
    if (flags > kTensorAlias) fail("{}: flags {:#x} are unknown", in.place, flags);
    tensor.alias = flags == kTensorAlias;
    const auto first_dim = take<uint64_t>(in), first_box = take<uint64_t>(in);
    const auto num_boxes = take<uint64_t>(in);
    const int64_t numel = take_size(in, "number of elements");
    // Ranges are claimed before they are read, so that element() never passes its section.
    claim(kDim, first_dim, uint64_t(ndim), in);
    claim(kBox, first_box, num_boxes, in);
    logical.global_shape = parse_shape(first_dim, ndim);
    const auto bytes = checked_bytes(logical.global_shape.dims(), logical.dtype);
    if (!bytes) fail("{}: the shape has more than 2^63-1 bytes", in.place);
    expect(numel, logical.global_shape.numel(), in, "number of elements");
    if (num_boxes == 0) fail("{}: it has no box", in.place);
    const auto first_sub = take<uint64_t>(in);
    const auto num_subs = take<uint32_t>(in);
    claim(kSubpart, first_sub, num_subs, in);
    take_zero(in, 4, "the reserved field");
    tensor.content_hash = take_id(in);
    parse_boxes(tensor, first_box, num_boxes);
    for (uint64_t s = 0; s < num_subs; ++s) skip_subpart(first_sub + s);
    return tensor;
  }

  void parse_boxes(IndexTensor& tensor, uint64_t first, uint64_t count) {
    int64_t max_end = 0;  // the running maximum that max_end0 states
    for (uint64_t b = first; b < first + count; ++b) {
      Cursor in = element(kBox, b);
      in.place += fmt::format(" of '{}'", tensor.logical.name);
      IndexBox piece = parse_box(in, tensor.logical);
      const Shape& offset = piece.box.offset;
      max_end = std::max(max_end, offset.ndim() ? offset[0] + piece.box.length[0] : 1);
      expect(take_size(in, "max_end0"), max_end, in, "max_end0");
      piece.max_end0 = max_end;
      if (!tensor.boxes.empty()) {
        const auto last = tensor.boxes.back().box.offset.dims();
        if (std::lexicographical_compare(offset.dims().begin(), offset.dims().end(), last.begin(),
                                         last.end()))
          fail("{}: boxes are not sorted by offset", in.place);
      }
      tensor.boxes.push_back(std::move(piece));
    }
  }

  IndexBox parse_box(Cursor& in, const LogicalTensor& logical) {
    IndexBox piece;
    piece.file = take<uint32_t>(in);
    if (piece.file >= index_.files.size())
      fail("{}: file {} does not exist; there are {}", in.place, piece.file, index_.files.size());
    const auto flags = take<uint32_t>(in);
    if (flags > kBoxWithoutCrc) fail("{}: flags {:#x} are unknown", in.place, flags);
    piece.byte_offset = take_size(in, "byte offset");
    const int64_t byte_length = take_size(in, "byte length");
    const auto first_pair = take<uint64_t>(in);
    const auto crc = take<uint32_t>(in);
    if (flags != kBoxWithoutCrc) piece.crc = crc;
    if (flags == kBoxWithoutCrc && crc != 0) fail("{}: an absent checksum is not zero", in.place);
    take_zero(in, 4, "the reserved field");
    const int ndim = logical.global_shape.ndim();
    claim(kPair, first_pair, uint64_t(ndim), in);
    piece.box = Box::whole(logical.global_shape);
    for (int d = 0; d < ndim; ++d) {
      Cursor pair = element(kPair, first_pair + uint64_t(d));
      piece.box.offset[d] = take_size(pair, "offset");
      piece.box.length[d] = take_size(pair, "length");
    }
    if (!inside(piece.box, logical.global_shape))
      fail("{}: the box passes the shape {}", in.place, logical.global_shape.to_string());
    expect(byte_length, piece.box.length.numel() * size_of(logical.dtype), in, "byte length");
    const IndexFile& file = index_.files[piece.file];
    if (piece.byte_offset < file.data_begin || byte_length > file.size_bytes - piece.byte_offset)
      fail("{}: bytes [{}, +{}) lie outside the data of '{}', [{}, {})", in.place,
           piece.byte_offset, byte_length, file.path, file.data_begin, file.size_bytes);
    if (piece.byte_offset % size_of(logical.dtype) != 0)
      fail("{}: byte offset {} is not a multiple of the element size {}", in.place,
           piece.byte_offset, size_of(logical.dtype));
    return piece;
  }

  // Parts of a fused parameter, which nothing reads; their names are among the others.
  void skip_subpart(uint64_t i) {
    Cursor in = element(kSubpart, i);
    take_text(in, "name");
  }

  IndexBlob parse_blob(uint64_t i) {
    Cursor in = element(kBlob, i);
    IndexBlob blob;
    blob.name = take_text(in, "name");
    in.place += fmt::format(" '{}'", blob.name);
    const auto kind = take<uint32_t>(in);
    if (kind > 1) fail("{}: blob kind {} is unknown", in.place, kind);
    blob.json = kind == 1;
    blob.file = take<uint32_t>(in);
    if (blob.file >= index_.files.size()) fail("{}: file {} does not exist", in.place, blob.file);
    blob.offset = take_size(in, "offset");
    blob.length = take_size(in, "length");
    blob.crc = take<uint32_t>(in);
    take_zero(in, 4, "the reserved field");
    const int64_t size_bytes = index_.files[blob.file].size_bytes;
    if (blob.offset > size_bytes || blob.length > size_bytes - blob.offset)
      fail("{}: bytes [{}, +{}) pass the end of its file, {}", in.place, blob.offset, blob.length,
           size_bytes);
    return blob;
  }

  void check_all_used() const {
    for (const IndexSection section : {kStr, kDim, kBox, kPair, kCrc, kSubpart})
      if (used_[section] != sections_[section].count)
        fail("section {}: {} of {} elements belong to nothing", kSectionNames[section],
             sections_[section].count - used_[section], sections_[section].count);
  }

  void check_unique() const {
    std::set<std::string_view> paths, tensors, blobs;
    for (const IndexFile& file : index_.files)
      if (!paths.insert(file.path).second) fail("file '{}' is listed twice", file.path);
    for (const IndexTensor& tensor : index_.tensors)
      if (!tensors.insert(tensor.logical.name).second)
        fail("tensor '{}' is listed twice", tensor.logical.name);
    for (const IndexBlob& blob : index_.blobs)
      if (!blobs.insert(blob.name).second) fail("blob '{}' is listed twice", blob.name);
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint32_t num_rows_ = 0;
  std::array<SectionView, kNumSections + 1> sections_{};
  std::array<uint64_t, kNumSections + 1> used_{};  // elements that have an owner
  std::array<bool, kNumSections + 1> seen_{};
  Index index_;
};

}  // namespace

std::span<const IndexBox> boxes_near(const IndexTensor& tensor, const Box& box) {
  const std::vector<IndexBox>& boxes = tensor.boxes;
  if (box.offset.ndim() == 0) return boxes;
  const int64_t begin = box.offset[0], end = begin + box.length[0];
  const auto first = std::partition_point(
      boxes.begin(), boxes.end(), [&](const IndexBox& each) { return each.max_end0 <= begin; });
  const auto last = std::partition_point(
      first, boxes.end(), [&](const IndexBox& each) { return each.box.offset[0] < end; });
  return {first, last};
}

Index parse_index(std::span<const std::byte> bytes, const std::string& path) {
  return Parser(bytes, path).parse();
}

}  // namespace ashlar::checkpoint
