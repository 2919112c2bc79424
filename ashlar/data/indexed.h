// Writes a prepared dataset, and reads tokens of one through memory maps.
//
//   PREFIX.bin  tokens     PREFIX.idx  index.h     PREFIX.json  sidecar.h (foreign sets lack it)
//   PREFIX.mask  a bit for each token, where some are not learned: 1 if it is a target
//
// PREFIX.idx gets its name last: where it exists, the other files are complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/output.h"
#include "ashlar/data/index.h"
#include "ashlar/data/sidecar.h"

namespace ashlar::data {

enum class Masked : uint8_t { kNo, kYes };

// Writes PREFIX.bin and PREFIX.idx, and PREFIX.mask if the dataset is masked, of the outputs, which
// their owner publishes after seal().
class IndexedWriter {
 public:
  IndexedWriter(Outputs& outputs, const std::string& prefix, TokenType type,
                Masked masked = Masked::kNo);

  // Adds tokens to the current document; ids must fit the type (asserted).
  void append(std::span<const int32_t> tokens);
  // For a masked dataset: learned[i] tells whether tokens[i] is a target.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> learned);
  void end_document();
  void add(std::span<const int32_t> tokens);  // adds one whole document
  void seal();                                // puts all on disk; nothing may be added after it

  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t longest_document() const { return longest_; }
  uint32_t bin_crc32c() const { return crc_; }  // after seal
  // After seal; nullopt: the dataset is not masked.
  std::optional<Sidecar::Mask> mask() const { return mask_; }

 private:
  void append_tokens(std::span<const int32_t> tokens);
  void flush();
  void flush_mask();
  void end_sequence();

  Outputs& outputs_;
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<File> bin_;
  std::vector<std::byte> buffer_;
  int64_t written_bytes_ = 0, num_tokens_ = 0, longest_ = 0, num_documents_ = 0;
  int64_t document_tokens_ = 0, sequence_tokens_ = 0;  // of the current document and sequence
  uint32_t crc_ = 0;
  std::unique_ptr<File> mask_file_;
  std::vector<std::byte> mask_buffer_;  // the last byte may have room
  int64_t mask_written_bytes_ = 0;
  std::optional<Sidecar::Mask> mask_;
  std::vector<int32_t> lengths_;    // of sequences: 4 bytes of memory per document
  std::vector<int64_t> continued_;  // sequences that continue a document
};

// "; ...": what the path of a dataset without an index is, for messages; "" if nothing is known.
std::string why_no_index(FileSystem& files, const std::string& prefix);

// The bytes of PREFIX.mask for that many tokens.
inline int64_t mask_bytes(int64_t num_tokens) {
  return num_tokens / 8 + (num_tokens % 8 > 0);
}

// Read-only; safe for several threads.
class IndexedDataset {
 public:
  // kData: no such dataset, a bad index (index.h), a .bin or .mask whose size differs from the
  // index's, a sidecar that contradicts it.
  IndexedDataset(FileSystem& files, const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  const DatasetIndex& index() const { return index_; }
  const std::optional<Sidecar>& sidecar() const { return sidecar_; }
  // A hash of the index, the .bin's size and the sidecar (with checksums of tokens and mask).
  uint64_t fingerprint() const { return fingerprint_; }

  // Reads tokens [begin, begin + out.size()).  kData if an id is not in [0, vocab_size), the
  // vocabulary of `model`, which the message names.
  void read(int64_t begin, int64_t vocab_size, std::span<int32_t> out,
            std::string_view model = "the model") const;
  bool is_masked() const { return mask_ != nullptr; }
  // Whether the token is a target; true for all of a dataset that is not masked.
  bool is_learned(int64_t token) const;

 private:
  void map_mask(FileSystem& files);

  std::string prefix_;
  std::unique_ptr<Mapping> idx_, bin_, mask_;  // mask_ may be null
  DatasetIndex index_;
  std::optional<Sidecar> sidecar_;
  uint64_t fingerprint_ = 0;
};

}  // namespace ashlar::data
