#include "ashlar/checkpoint/format/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "ashlar/checkpoint/format/json_text.h"
#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/rounding.h"

namespace ashlar::checkpoint {
namespace {

constexpr DType kAllTypes[] = {DType::kF64,  DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                               DType::kI32,  DType::kI16, DType::kU16,  DType::kU8,  DType::kI8,
                               DType::kBool, DType::kU32, DType::kU64};

std::string known_types() {
  std::string names;
  for (const DType dtype : kAllTypes)
    names += (names.empty() ? "" : ", ") + std::string(name_of(dtype));
  return names;
}

TensorEntry parse_entry(const std::string& name, const Fields& fields) {
  TensorEntry entry;
  entry.name = name;
  if (name.empty() || int64_t(name.size()) > kMaxNameBytes)
    fields.fail("the name has {} bytes; expected 1 to {}", name.size(), kMaxNameBytes);
  fields.only({"dtype", "shape", "data_offsets"});
  const auto dtype = dtype_from_name(fields.text("dtype"));
  if (!dtype)
    fields.fail("dtype is {}; expected one of {}", shown(fields.at("dtype")), known_types());
  entry.dtype = *dtype;
  entry.shape = fields.counts("shape");
  if (entry.shape.size() > kMaxDims)
    fields.fail("shape has {} numbers; at most {} are allowed", entry.shape.size(), kMaxDims);
  const std::vector<int64_t> offsets = fields.counts("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    fields.fail("data_offsets is {}; expected [begin, end] with begin <= end",
                shown(fields.at("data_offsets")));
  entry.begin = offsets[0], entry.end = offsets[1];
  const auto bytes = checked_bytes(entry.shape, entry.dtype);
  if (!bytes) fields.fail("shape [{}] has more than 2^63-1 bytes", fmt::join(entry.shape, ", "));
  if (*bytes != entry.bytes())
    fields.fail("shape [{}] of {} needs {} bytes but data_offsets span {}",
                fmt::join(entry.shape, ", "), name_of(entry.dtype), *bytes, entry.bytes());
  return entry;
}

// The entries are sorted by offset.
void check_tiling(const SafetensorsHeader& header, int64_t file_bytes, const std::string& path,
                  ErrorKind kind) {
  int64_t end = 0;
  for (const TensorEntry& entry : header.entries) {
    if (entry.begin != end)
      raise(kind, "{}: tensor '{}': data starts at byte {}; expected {}: {}", path, entry.name,
            entry.begin, end, entry.begin < end ? "tensors overlap" : "there is a hole");
    end = entry.end;
  }
  const int64_t data_bytes = file_bytes - header.data_begin;
  if (end != data_bytes)
    raise(kind,
          "{}: the tensors hold {} bytes but the file has {} after its header; the file is {}",
          path, end, data_bytes, end > data_bytes ? "cut short" : "too long");
}

}  // namespace

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType dtype : kAllTypes)
    if (name_of(dtype) == name) return dtype;
  return std::nullopt;
}

std::optional<int64_t> checked_bytes(std::span<const int64_t> shape, DType dtype) {
  int64_t bytes = size_of(dtype);
  for (const int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  for (const TensorEntry& entry : entries)
    if (entry.name == name) return &entry;
  return nullptr;
}

int64_t parse_header_length(std::span<const std::byte> first_8, int64_t file_bytes,
                            const std::string& path, ErrorKind kind) {
  if (file_bytes < 8 || first_8.size() < 8)
    raise(kind, "{}: the file has {} bytes; a safetensors file has at least 8", path, file_bytes);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(first_8[size_t(i)]);
  if (length > uint64_t(kMaxHeaderBytes))
    raise(kind,
          "{}: the header length is {}; at most {} bytes are allowed (is this a safetensors file?)",
          path, length, kMaxHeaderBytes);
  if (int64_t(length) > file_bytes - 8)
    raise(kind, "{}: the header needs {} bytes but the file has {}; it is cut short", path,
          length + 8, file_bytes);
  return int64_t(length);
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    const std::string& path, ErrorKind kind) {
  const int64_t length = parse_header_length(head, file_bytes, path, kind);
  if (int64_t(head.size()) < length + 8)
    raise(kind, "{}: the header needs {} bytes but {} could be read", path, length + 8,
          head.size());
  std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, size_t(length));
  if (text.empty() || text.front() != '{')
    raise(kind, "{}: the header does not begin with '{{'; this is not a safetensors file", path);
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  const Json json = parse_json(text, path, kind, kMaxHeaderValues);

  SafetensorsHeader header;
  // parse_json refuses keys that come twice, so that names are unique.
  header.data_begin = length + 8;
  for (const auto& item : json.items()) {
    if (item.key() != "__metadata__") {
      const std::string place = fmt::format("{}: tensor '{}'", path, item.key());
      header.entries.push_back(parse_entry(item.key(), Fields(item.value(), place, kind)));
      continue;
    }
    const Fields metadata(item.value(), path + ": __metadata__", kind);
    for (const auto& pair : item.value().items())
      header.metadata[pair.key()] = metadata.text(pair.key());
  }
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     // By end too: an empty tensor comes before the one that begins at its place.
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_tiling(header, file_bytes, path, kind);
  return header;
}

SafetensorsHeader read_safetensors_header(const File& file, const std::string& path,
                                          ErrorKind kind) {
  const int64_t file_bytes = file.size();
  std::vector<std::byte> head(8);
  if (file_bytes >= 8) file.read_at(head, 0);
  head.resize(size_t(8 + parse_header_length(head, file_bytes, path, kind)));
  file.read_at(head, 0);
  return parse_safetensors(head, file_bytes, path, kind);
}

int alignment_exponent(int64_t x) {
  return x == 0 ? 12 : std::min(12, std::countr_zero(uint64_t(x)));
}

namespace {

std::string header_text(std::span<const TensorEntry> entries,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto add_name = [&](const std::string& name) {
    if (text.back() != '{') text += ',';
    append_json_string(text, name);
    text += ':';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [name, value] : metadata) {
      add_name(name);
      append_json_string(text, value);
    }
    text += '}';
  }
  for (const TensorEntry& entry : entries) {
    add_name(entry.name);
    text += fmt::format("{{\"dtype\":\"{}\",\"shape\":", name_of(entry.dtype));
    append_json_list(text, entry.shape);
    text += ",\"data_offsets\":";
    append_json_list(text, std::array{entry.begin, entry.end});
    text += '}';
  }
  return text + '}';
}

}  // namespace

SafetensorsPlan plan_safetensors(std::span<const TensorSpec> tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 HeaderStyle style) {
  SafetensorsPlan plan;
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    const auto bytes = checked_bytes(tensor.shape, tensor.dtype);
    ASHLAR_ASSERT(bytes && names.insert(tensor.name).second);
    plan.entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, *bytes});
  }
  if (style == HeaderStyle::kAligned)
    std::stable_sort(plan.entries.begin(), plan.entries.end(),
                     [](const TensorEntry& a, const TensorEntry& b) {
                       return alignment_exponent(a.bytes()) > alignment_exponent(b.bytes());
                     });
  int64_t data_bytes = 0;
  for (TensorEntry& entry : plan.entries) {
    const int64_t bytes = entry.bytes();
    entry.begin = data_bytes;
    entry.end = data_bytes += bytes;
  }
  std::string text = header_text(plan.entries, metadata);
  const int64_t unit = style == HeaderStyle::kAligned ? kAlignment : 8;
  plan.data_begin = round_up(8 + int64_t(text.size()), unit);
  text.resize(size_t(plan.data_begin - 8), ' ');
  ASHLAR_REQUIRE(int64_t(text.size()) <= kMaxHeaderBytes, kStorage,
                 "a safetensors header of {} bytes passes the limit of {}; use more files",
                 text.size(), kMaxHeaderBytes);
  for (int shift = 0; shift < 64; shift += 8) plan.header += char(text.size() >> shift & 0xff);
  plan.header += text;
  plan.file_bytes = plan.data_begin + data_bytes;
  return plan;
}

}  // namespace ashlar::checkpoint
