#include "ashlar/models/hf/files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/models/hf/names.h"
#include "ashlar/models/hf/strays.h"
#include "ashlar/tensor/f16.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::models {
namespace {

constexpr int64_t kConvertedElements = 64 << 10;  // converted at a time

// The weight_map of the index: tensor name as stored -> file.
std::map<std::string, std::string> read_index(FileSystem& files, const std::string& path) {
  const Json json = parse_json(read_text(files, path), path, ErrorKind::kData);
  const auto at = json.is_object() ? json.find("weight_map") : json.end();
  ASHLAR_REQUIRE(json.is_object() && at != json.end() && at->is_object() && !at->empty(), kData,
                 "{}: weight_map is missing or empty; expected an object of tensor name: file name",
                 path);
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, file] : at->items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : std::string();
    ASHLAR_REQUIRE(
        !text.empty() && text != ".." && text.find_first_of("/\\") == std::string::npos &&
            text.find('\0') == std::string::npos && text.ends_with(".safetensors"),
        kData,
        "{}: weight_map[\"{}\"] is {}; expected the name of a .safetensors file beside the "
        "index",
        path, name, file.dump(-1, ' ', true));
    weight_map[name] = text;
  }
  return weight_map;
}

class Opener {
 public:
  Opener(FileSystem& files, const std::string& directory) : files_(files), directory_(directory) {}

  void open_all() {
    const std::string single = join(directory_, kHfSingleFile),
                      index = join(directory_, kHfIndexFile);
    const bool has_single = is_plain_file(files_, single), has_index = is_plain_file(files_, index);
    ASHLAR_REQUIRE(
        has_single || has_index, kData,
        "{}: neither {} nor {} found; expected safetensors weights: convert .bin files with "
        "transformers' save_pretrained",
        directory_, kHfSingleFile, kHfIndexFile);
    ASHLAR_REQUIRE(!(has_single && has_index), kData,
                   "{}: both {} and {} found; expected one of them: remove the stale one",
                   directory_, kHfSingleFile, kHfIndexFile);
    if (has_single) {
      open_shard(std::string(kHfSingleFile));
      return;
    }
    const auto weight_map = read_index(files_, index);
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    for (const std::string& name : names) {
      ASHLAR_REQUIRE(
          is_plain_file(files_, join(directory_, name)), kData,
          "{}: weight_map names {}, which is not in {}; expected every shard: fetch it again",
          index, name, directory_);
      open_shard(name);
    }
    check_index(index, weight_map);
  }

  HfFiles found;

 private:
  void open_shard(const std::string& name) {
    const std::string path = join(directory_, name);
    HfShard shard{path, files_.open(path), 0};
    const checkpoint::SafetensorsHeader header =
        checkpoint::read_safetensors_header(*shard.file, path, ErrorKind::kData);
    shard.data_begin = header.data_begin;
    for (const checkpoint::TensorEntry& entry : header.entries) {
      const auto [at, added] =
          found.stored.emplace(canonical_name(entry.name), HfStored{found.shards.size(), entry});
      ASHLAR_REQUIRE(added, kData,
                     "{}: tensor {} is in {} too; expected every tensor once: remove one file",
                     path, entry.name,
                     at->second.shard == found.shards.size() ? path : found.path_of(at->second));
    }
    found.shards.push_back(std::move(shard));
  }

  // Index and shards must name the same tensors in the same files.  Names are compared as they are
  // stored, not in their canonical form.
  void check_index(const std::string& index, const std::map<std::string, std::string>& weight_map) {
    std::vector<std::string> absent, unnamed;
    std::set<std::string> names;
    for (const auto& [name, tensor] : found.stored) {
      const auto at = weight_map.find(tensor.entry.name);
      names.insert(tensor.entry.name);
      if (at == weight_map.end() || join(directory_, at->second) != found.path_of(tensor))
        unnamed.push_back(tensor.entry.name);
    }
    for (const auto& [name, file] : weight_map)  // strays may be gone from shards written anew
      if (!names.count(name) && !is_stray_name(name))
        absent.push_back(fmt::format("{} ({})", name, file));
    ASHLAR_REQUIRE(
        absent.empty(), kData,
        "{}: weight_map names tensors that their shard lacks: {}; expected index and shards "
        "of one model: fetch them again",
        index, listed(absent));
    ASHLAR_REQUIRE(unnamed.empty(), kData,
                   "{}: the shards hold tensors that weight_map does not place there: {}; expected "
                   "index and shards of one model: fetch them again",
                   index, listed(unnamed));
  }

  FileSystem& files_;
  std::string directory_;
};

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(kShown, names.size());
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + long(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

bool is_plain_file(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path, LinkPolicy::kFollow);
  if (!info) return false;
  ASHLAR_REQUIRE(info->type == FileInfo::Type::kFile, kData, "{}: expected a regular file", path);
  return true;
}

bool is_hf_readable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

DType wider(DType a, DType b) {
  if (a == b) return a;
  return a == DType::kF64 || b == DType::kF64 ? DType::kF64 : DType::kF32;
}

void HfFiles::read(const HfStored& tensor, int64_t first, int64_t count, DType dtype,
                   std::byte* out) const {
  const HfShard& shard = shards[tensor.shard];
  const DType from = tensor.entry.dtype;
  const int64_t from_size = size_of(from), to_size = size_of(dtype);
  const int64_t begin = shard.data_begin + tensor.entry.begin + first * from_size;
  if (from == dtype) {
    shard.file->read_at({out, size_t(count * to_size)}, begin);
    return;
  }
  std::vector<std::byte> raw(size_t(std::min(count, kConvertedElements) * from_size));
  std::vector<float> decoded;
  for (int64_t done = 0; done < count; done += kConvertedElements) {
    const int64_t n = std::min(kConvertedElements, count - done);
    shard.file->read_at({raw.data(), size_t(n * from_size)}, begin + done * from_size);
    Tensor source{raw.data(), from, Device::kCpu, Shape{n}};
    if (from == DType::kF16) {  // copy_convert does not know it
      decoded.resize(size_t(n));
      std::copy_n(source.as<f16>(), n, decoded.begin());
      source = tensor_over(std::span(decoded));
    }
    copy_convert(source, Tensor{out + done * to_size, dtype, Device::kCpu, Shape{n}});
  }
}

HfFiles open_hf_files(FileSystem& files, const std::string& directory) {
  Opener opener(files, directory);
  opener.open_all();
  return std::move(opener.found);
}

}  // namespace ashlar::models
