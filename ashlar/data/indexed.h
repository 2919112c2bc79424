// Writes a prepared dataset, and reads tokens of one through memory maps.
//
//   PREFIX.bin  tokens     PREFIX.idx  index.h     PREFIX.json  sidecar.h (foreign sets lack it)
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

// Writes PREFIX.bin and PREFIX.idx, two of the outputs, which their owner publishes after seal().
class IndexedWriter {
 public:
  IndexedWriter(Outputs& outputs, const std::string& prefix, TokenType type);

  // Adds tokens to the current document; ids must fit the type (asserted).
  void append(std::span<const int32_t> tokens);
  void end_document();
  void add(std::span<const int32_t> tokens);  // adds one whole document
  void seal();                                // puts all on disk; nothing may be added after it

  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t longest_document() const { return longest_; }
  uint32_t bin_crc32c() const { return crc_; }  // after seal

 private:
  void flush();
  void end_sequence();

  Outputs& outputs_;
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<File> bin_;
  std::vector<std::byte> buffer_;
  int64_t written_bytes_ = 0, num_tokens_ = 0, longest_ = 0, num_documents_ = 0;
  int64_t document_tokens_ = 0, sequence_tokens_ = 0;  // of the current document and sequence
  uint32_t crc_ = 0;
  std::vector<int32_t> lengths_;    // of sequences: 4 bytes of memory per document
  std::vector<int64_t> continued_;  // sequences that continue a document
};

// "; ...": what the path of a dataset without an index is, for messages; "" if nothing is known.
std::string why_no_index(FileSystem& files, const std::string& prefix);

// Read-only; safe for several threads.
class IndexedDataset {
 public:
  // kData: no such dataset, a bad index (index.h), a .bin whose size differs from the index's, a
  // sidecar that contradicts it.
  IndexedDataset(FileSystem& files, const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  const DatasetIndex& index() const { return index_; }
  const std::optional<Sidecar>& sidecar() const { return sidecar_; }
  // A hash of the index, the .bin's size and the sidecar (which holds a checksum of the tokens).
  uint64_t fingerprint() const { return fingerprint_; }

  // Reads tokens [begin, begin + out.size()).  kData if an id is not in [0, vocab_size), the
  // vocabulary of `model`, which the message names.
  void read(int64_t begin, int64_t vocab_size, std::span<int32_t> out,
            std::string_view model = "the model") const;

 private:
  std::string prefix_;
  std::unique_ptr<Mapping> idx_, bin_;
  DatasetIndex index_;
  std::optional<Sidecar> sidecar_;
  uint64_t fingerprint_ = 0;
};

}  // namespace ashlar::data
