// The safetensors files of a Hugging Face model directory, one or many, as one list of tensors.
// It knows nothing of the model: hf/model.h says which tensors must exist.
//
// Errors   kData: no weights, a stale or incomplete index, a malformed header, a tensor twice.
// Threads  read() may be called from any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/files.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::models {

inline constexpr std::string_view kHfConfigFile = "config.json";
inline constexpr std::string_view kHfGenerationFile = "generation_config.json";
inline constexpr std::string_view kHfSingleFile = "model.safetensors";
inline constexpr std::string_view kHfIndexFile = "model.safetensors.index.json";

struct HfShard {
  std::string path;
  std::unique_ptr<File> file;
  int64_t data_begin = 0;
};

// A tensor in its file; entry.name is its name there.
struct HfStored {
  size_t shard = 0;
  checkpoint::TensorEntry entry;
};

struct HfFiles {
  std::vector<HfShard> shards;
  std::map<std::string, HfStored> stored;  // by canonical_name()

  const std::string& path_of(const HfStored& tensor) const { return shards[tensor.shard].path; }

  // Elements [first, first + count) of a tensor of BF16, F16, F32 or F64, as F64, F32 or BF16 into
  // `out`.  Equal types are copied bit for bit.
  void read(const HfStored& tensor, int64_t first, int64_t count, DType dtype,
            std::byte* out) const;
};

// `files` must outlive the result.
HfFiles open_hf_files(FileSystem& files, const std::string& directory);

bool is_hf_readable(DType dtype);  // BF16, F16, F32, F64
// The type that holds all values of both, F32 for BF16 and F16.
DType wider(DType a, DType b);

// True for a regular file or a link to one (a Hugging Face cache is made of links), false for
// nothing, kData for a directory or a device.
bool is_plain_file(FileSystem& files, const std::string& path);

// "a, b, c and 4 more": at most five names.
std::string listed(const std::vector<std::string>& names);

}  // namespace ashlar::models
