// One committed step, opened to read: its manifest, its index, its tensors, its extra files.
//
// Opening reads COMMIT, manifest and index, checks their digests against COMMIT, that they agree
// with each other, and the size of every data file.  Reading verifies the CRC of every 4 MiB that
// it touches.  Nothing is ever written.
//
// Errors   kCorrupt: PATH and what is wrong (a missing file included); kConfig if the destinations
//          do not match what is stored; kStorage if the machine cannot read.
// Threads  const members from several threads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/checkpoint/commit.h"
#include "ashlar/checkpoint/index.h"
#include "ashlar/checkpoint/manifest.h"
#include "ashlar/core/files.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

struct LoadOptions {
  // Which components the destinations stand for: a stored tensor of them that no destination names
  // is unexpected.  Empty: all.
  std::vector<Component> components;
  std::vector<std::string> allow_missing, allow_unexpected;  // names, '*' stands for any text
  std::vector<std::pair<DType, DType>> cast;  // stored -> wanted; among F64, F32 and BF16
};

struct LoadReport {
  std::vector<std::string> missing, unexpected;  // those that the options allowed
  std::vector<std::string> cast;                 // names of tensors that were converted
  int64_t tensors = 0, bytes_read = 0;
  double seconds = 0;
};

class StepReader {
 public:
  StepReader(FileSystem& files, std::string directory);
  StepReader(StepReader&&) = default;
  StepReader(const StepReader&) = delete;

  const std::string& directory() const { return directory_; }
  int64_t step() const { return commit_.step; }
  const Commit& commit() const { return commit_; }
  const Manifest& manifest() const { return manifest_; }
  const Index& index() const { return index_; }
  const IndexTensor* find(std::string_view name) const;  // nullptr: not stored

  // Fills every destination: any boxes of the logical tensors.  All names, shapes and types are
  // checked first; unless they match (or the options allow it) nothing is written.  A destination
  // that is allowed to be missing is left as it is.
  LoadReport load(std::span<const Piece> destinations, const LoadOptions& options = {}) const;

  bool has_blob(std::string_view name) const;
  std::string read_blob(std::string_view name) const;  // a file under extra/; kCorrupt if absent

  // Bytes of one chunk of one file, CRC checked.  `buffer` holds kChunkBytes.
  std::span<const std::byte> read_chunk(const File& file, size_t file_index, int64_t chunk,
                                        std::span<std::byte> buffer) const;
  std::unique_ptr<File> open(size_t file_index) const;

 private:
  void read_metadata();
  void check_files() const;

  FileSystem& files_;
  std::string directory_;
  Commit commit_;
  Manifest manifest_;
  Index index_;
  std::unordered_map<std::string_view, size_t> tensor_of_;  // views into index_
};

bool matches(std::string_view name, std::string_view pattern);  // '*' stands for any text

}  // namespace ashlar::checkpoint
