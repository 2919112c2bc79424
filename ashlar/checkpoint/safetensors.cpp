#include "ashlar/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "ashlar/checkpoint/raise.h"
#include "ashlar/core/json.h"

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

// What a person sees of a value from the file: short, whatever it is.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Where a message points: "PATH: tensor 'name'".
struct Place {
  const std::string& path;
  ErrorKind kind;
  std::string name;

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    raise(kind, "{}: tensor '{}': {}", path, name,
          fmt::format(format, std::forward<Args>(args)...));
  }
};

std::vector<int64_t> parse_integers(const Json& value, std::string_view key, size_t max_count,
                                    const Place& place) {
  if (!value.is_array()) place.fail("{} is {}; expected a list of integers", key, shown(value));
  if (value.size() > max_count)
    place.fail("{} has {} numbers; at most {} are allowed", key, value.size(), max_count);
  std::vector<int64_t> numbers;
  for (const Json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t(INT64_MAX))
      place.fail("{} holds {}; expected an integer from 0 to 2^63-1", key, shown(item));
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

TensorEntry parse_entry(const std::string& name, const Json& value, const Place& place) {
  TensorEntry entry;
  entry.name = name;
  if (name.empty() || int64_t(name.size()) > kMaxNameBytes)
    place.fail("the name has {} bytes; expected 1 to {}", name.size(), kMaxNameBytes);
  if (!value.is_object())
    place.fail("found {}; expected an object with dtype, shape and data_offsets", shown(value));
  for (const auto& item : value.items())
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      place.fail("unknown key '{}'; expected dtype, shape, data_offsets", item.key());
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) place.fail("key '{}' is missing", key);
  const Json& dtype_name = value["dtype"];
  const auto dtype = dtype_name.is_string()
                         ? dtype_from_name(dtype_name.get_ref<const std::string&>())
                         : std::nullopt;
  if (!dtype) place.fail("dtype is {}; expected one of {}", shown(dtype_name), known_types());
  entry.dtype = *dtype;
  entry.shape = parse_integers(value["shape"], "shape", kMaxDims, place);
  const std::vector<int64_t> offsets =
      parse_integers(value["data_offsets"], "data_offsets", 2, place);
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    place.fail("data_offsets is {}; expected [begin, end] with begin <= end",
               shown(value["data_offsets"]));
  entry.begin = offsets[0], entry.end = offsets[1];
  const auto bytes = checked_bytes(entry.shape, entry.dtype);
  if (!bytes) place.fail("shape [{}] has more than 2^63-1 bytes", fmt::join(entry.shape, ", "));
  if (*bytes != entry.bytes())
    place.fail("shape [{}] of {} needs {} bytes but data_offsets span {}",
               fmt::join(entry.shape, ", "), name_of(entry.dtype), *bytes, entry.bytes());
  return entry;
}

void check_tiling(const SafetensorsHeader& header, int64_t file_bytes, const std::string& path,
                  ErrorKind kind) {
  int64_t end = 0;
  for (const TensorEntry& entry : header.entries) {
    if (entry.begin != end)
      Place{path, kind, entry.name}.fail("data starts at byte {}; expected {}: {}", entry.begin,
                                         end,
                                         entry.begin < end ? "tensors overlap" : "there is a hole");
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
  const Json json = parse_json(text, path, kind);

  SafetensorsHeader header;
  header.data_begin = length + 8;
  for (const auto& item : json.items()) {
    const Place place{path, kind, item.key()};
    if (item.key() != "__metadata__") {
      header.entries.push_back(parse_entry(item.key(), item.value(), place));
      continue;
    }
    if (!item.value().is_object())
      raise(kind, "{}: __metadata__ is {}; expected an object of strings", path,
            shown(item.value()));
    for (const auto& pair : item.value().items()) {
      if (!pair.value().is_string())
        raise(kind, "{}: __metadata__.{} is {}; expected a string", path, pair.key(),
              shown(pair.value()));
      header.metadata[pair.key()] = pair.value().get<std::string>();
    }
  }
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
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

SafetensorsPlan plan_safetensors(std::span<const TensorSpec> tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 HeaderStyle style) {
  SafetensorsPlan plan;
  std::set<std::string_view> names;
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
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  // An ordered object searches on every insertion; names are known to be unique, so append.
  auto& members = json.get_ref<nlohmann::ordered_json::object_t&>();
  for (TensorEntry& entry : plan.entries) {
    entry = {entry.name, entry.dtype, entry.shape, data_bytes, data_bytes + entry.bytes()};
    data_bytes = entry.end;
    nlohmann::ordered_json value;
    value["dtype"] = name_of(entry.dtype);
    value["shape"] = entry.shape;
    value["data_offsets"] = {entry.begin, entry.end};
    static_cast<nlohmann::ordered_json::object_t::Container&>(members).emplace_back(
        entry.name, std::move(value));
  }
  std::string text = json.dump();
  const int64_t unit = style == HeaderStyle::kAligned ? kAlignment : 8;
  plan.data_begin = (8 + int64_t(text.size()) + unit - 1) / unit * unit;
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
