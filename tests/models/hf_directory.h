// A directory in which models are written and read, and its files taken apart without the code
// under test.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/json.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {

using testing_support::message_of;
using testing_support::TemporaryDirectory;

// A saved model of every family that is read.
inline const char* const kFamilies[] = {"hf_small",     "hf_llama",   "hf_qwen3",     "hf_mixtral",
                                        "hf_qwen3_moe", "hf_minimax", "hf_qwen3_next"};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// name -> bytes of the tensors of a file.
inline std::map<std::string, std::string> take_apart(const std::string& path) {
  const std::string bytes = slurp(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  std::map<std::string, std::string> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const int64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = bytes.substr(8 + length + size_t(begin), size_t(end - begin));
  }
  return tensors;
}

inline std::string text_of(const std::vector<std::byte>& memory) {
  return {reinterpret_cast<const char*>(memory.data()), memory.size()};
}

inline void expect_equal(const Values& a, const Values& b) {
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (size_t n = 0; n < a.pieces.size(); ++n) {
    const std::string& name = a.pieces[n].logical.name;
    EXPECT_EQ(text_of(a.memory[n]), text_of(b.of(name))) << name;
  }
}

// Rewrites the one file of a directory: `change` sees name, dtype and bytes of every tensor.
struct RawTensor {
  checkpoint::TensorSpec spec;
  std::string bytes;
};
inline void rewrite(const std::string& directory,
                    const std::function<void(std::vector<RawTensor>&)>& change) {
  const std::string path = directory + "/model.safetensors";
  const auto bytes = slurp(path);
  const checkpoint::SafetensorsHeader header = checkpoint::parse_safetensors(
      std::as_bytes(std::span(bytes)), int64_t(bytes.size()), path, ErrorKind::kData);
  std::vector<RawTensor> tensors;
  for (const checkpoint::TensorEntry& entry : header.entries)
    tensors.push_back(
        {{entry.name, entry.dtype, entry.shape},
         bytes.substr(size_t(header.data_begin + entry.begin), size_t(entry.bytes()))});
  change(tensors);
  std::vector<checkpoint::TensorSpec> specs;
  std::string data;
  for (const RawTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    data += tensor.bytes;
  }
  spill(path,
        checkpoint::plan_safetensors(specs, {{"format", "pt"}}, checkpoint::HeaderStyle::kPlain)
                .header +
            data);
}

class HfDirectoryTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const ModelSpec& spec, const Values& values,
             const HfWriteOptions& options) {
    write_hf_model(*files, root / name, spec, values.pieces, options);
  }
  void write(const std::string& name, const ModelKeys& spec, const Values& values,
             const HfWriteOptions& options) {
    write(name, model_of(spec), values, options);
  }
  HfModel open(const std::string& name) { return HfModel::open(*files, root / name); }

  std::unique_ptr<FileSystem> files = posix_files();
  TemporaryDirectory root;
};

inline const HfWriteOptions kF32Native{HfLayout::kNative, DType::kF32};
inline const HfWriteOptions kF32Legacy{HfLayout::kLegacy, DType::kF32};

}  // namespace ashlar::models
