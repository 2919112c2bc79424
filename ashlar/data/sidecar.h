// PREFIX.json beside a prepared dataset: the meaning of its tokens and their origin.
// docs/formats/dataset.md gives the members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar::data {

struct Sidecar {
  struct Input {
    std::string path;
    int64_t bytes = 0;  // as stored
    int64_t documents = 0;
    friend bool operator==(const Input&, const Input&) = default;
  };
  struct Mask {
    int64_t learned = 0;  // the number of ones
    uint32_t crc32c = 0;  // of PREFIX.mask
    friend bool operator==(const Mask&, const Mask&) = default;
  };
  std::string tokenizer_kind;          // "sentencepiece", "byte"
  uint64_t tokenizer_fingerprint = 0;  // of PREFIX.tokenizer.model
  int64_t vocab_size = 0;
  int32_t eos_id = 0;   // ends every document
  int32_t bos_id = -1;  // begins every document; -1: none
  int64_t documents = 0, tokens = 0;
  std::string token_type;  // "u16", "i32"
  uint32_t bin_crc32c = 0;
  std::vector<Input> inputs;
  std::optional<Mask> mask = {};  // absent: all tokens are learned
  friend bool operator==(const Sidecar&, const Sidecar&) = default;
};

std::string format_sidecar(const Sidecar& sidecar);
// kData "FILE: member: found; expected".
Sidecar parse_sidecar(const std::string& text, const std::string& file);
Sidecar load_sidecar(FileSystem& files, const std::string& path);

}  // namespace ashlar::data
