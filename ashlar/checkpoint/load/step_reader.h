// One committed step, opened to read: its manifest, its index, its tensors, its extra files.
//
// Opening reads COMMIT, manifest and index, checks their digests against COMMIT and that they agree
// with each other.  Reading checks the size of every file that it opens, and the CRC of every 4 MiB
// that it touches.  A reader never writes.
//
// Ranks    several ranks may open and load a step together (LoadRanks, load_ranks.h), each the part
//          that it wants: all of them call the constructor, load and read_blob in the same order.
//          Rank 0 reads COMMIT, manifest, index and blobs for all; every chunk of data that any
//          rank wants is read by one of them (load_plan.h); an error that one of them finds is
//          thrown on all.
// Calls    on names and sizes, by all ranks together: at most 2 for each file, 2 for each rank, 2
//          for each blob, and 7 for the step.
// Memory   of a load: at most 64 MiB beside the destinations and the index; for each read in flight
//          512 KiB, or 4 MiB where nothing is sent to other processes and reads go past the
//          system's memory: these are kept for the next load while a step is open.
// Errors   kCorrupt: PATH and what is wrong, a missing file included once it cannot be stale any
//          more (stale_retry.h); kConfig if the destinations do not match what is stored; kStorage
//          if the machine cannot read.
// Threads  const members from several threads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/manifest.h"
#include "ashlar/checkpoint/format/stale_retry.h"
#include "ashlar/checkpoint/load/load_ranks.h"
#include "ashlar/checkpoint/load/read_memory.h"
#include "ashlar/core/files.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

// Whether the system keeps what was read in its memory.  kCached: it does, for programs that read
// the same soon.  kDirect: it does not, so that a large file that is read once costs less processor
// time and evicts nothing.  kDirectIfWhole keeps only chunks of which a load wants a part, since
// the next load may want the rest.
enum class Reads : uint8_t { kCached, kDirect, kDirectIfWhole };

struct LoadOptions {
  // The destinations are parts of a larger work: tensors that are stored beside them are neither
  // unexpected nor looked at, so that the cost of many such loads does not grow with their number.
  bool only_these = false;
  // The components that the destinations cover: a stored tensor of one of them that no destination
  // names is unexpected.  Empty: all.
  std::vector<Component> components;
  std::vector<std::string> allow_missing, allow_unexpected;  // names, '*' stands for any text
  std::vector<std::pair<DType, DType>> cast;  // stored -> wanted; among F64, F32 and BF16
  int reads_in_flight = 8;                    // of this rank
};

struct LoadReport {
  std::vector<std::string> missing, unexpected;  // those that the options allowed
  std::vector<std::string> cast;                 // names of tensors that were converted
  int64_t tensors = 0;
  // By this rank: from files, to and from other ranks, and memory that chunks went through.
  int64_t bytes_read = 0, sent_bytes = 0, received_bytes = 0, buffer_bytes = 0;
  double seconds = 0;
};

class StepReader {
 public:
  // ranks: read this step together; it outlives the reader.  nullptr: this rank reads alone.
  StepReader(FileSystem& files, std::string directory, LoadRanks* ranks = nullptr);
  StepReader(StepReader&&) = default;
  StepReader(const StepReader&) = delete;

  // Keeps `lease`, which keeps the step from being removed, as long as this object lives.
  void hold(std::shared_ptr<const void> lease) { lease_ = std::move(lease); }
  const std::shared_ptr<const void>& lease() const { return lease_; }

  // Loads from both steps take turns in one memory from now on, instead of one for each step.
  void share_memory_with(const StepReader& other) { read_memory_ = other.read_memory_; }

  // Sets how chunks are read from now on; kCached is the default.
  void set_reads(Reads reads) { reads_ = reads; }
  Reads reads() const { return reads_; }

  const std::string& directory() const { return directory_; }
  int64_t step() const { return commit_.step; }
  const Commit& commit() const { return commit_; }
  const Manifest& manifest() const { return manifest_; }
  const Index& index() const { return index_; }
  const IndexTensor* find(std::string_view name) const;  // nullptr: not stored

  // Fills every destination: any boxes of the logical tensors.  All names, shapes and types are
  // checked first; unless they match (or the options allow it) nothing is written.  A destination
  // that is allowed to be missing is left as it is.  After any other error destinations may have
  // anything, damaged bytes too.
  LoadReport load(std::span<const Piece> destinations, const LoadOptions& options = {}) const;

  bool has_blob(std::string_view name) const;
  std::string read_blob(std::string_view name) const;  // a file under extra/; kCorrupt if absent

  // Reads one chunk of one file and checks its CRC.  The chunk is handled in blocks that fit the
  // processor's caches: `take` gets each with its offset in the chunk, before it is known whether
  // the chunk is right.  `memory` either holds the whole chunk, or is a smaller multiple of
  // kBlockBytes that the chunk passes through; it also limits the size of a direct read.  Returns
  // false, after a wait, if the open file was stale: the caller opens it again, and `take` sees the
  // chunk again.
  static constexpr int64_t kBlockBytes = int64_t(512) << 10;
  using TakeBlock = function_ref<void(int64_t at, std::span<const std::byte>)>;
  bool read_chunk(const File& file, size_t file_index, int64_t chunk, bool direct,
                  std::span<std::byte> memory, TakeBlock take) const;
  std::unique_ptr<File> open(size_t file_index) const;
  ReadMemory& read_memory() const { return *read_memory_; }
  void check_size(size_t file_index) const;  // of a file that need not be opened

 private:
  struct Texts {
    std::string commit, manifest, index;
  };
  Texts read_texts() const;
  std::string read_commit() const;
  void parse(Texts texts);
  void check_agreement() const;
  std::string read_own_blob(std::string_view name) const;
  LoadRanks& ranks() const { return ranks_ ? *ranks_ : *alone_; }

  std::shared_ptr<const void> lease_;
  Reads reads_ = Reads::kCached;
  FileSystem& files_;
  std::string directory_;
  LoadRanks* ranks_;
  std::unique_ptr<Alone> alone_ = std::make_unique<Alone>();
  std::unique_ptr<StaleRetry> retry_;
  std::shared_ptr<ReadMemory> read_memory_;  // that of the ranks
  Commit commit_;
  Manifest manifest_;
  Index index_;
  std::unordered_map<std::string_view, size_t> tensor_of_;  // views into index_
};

bool matches(std::string_view name, std::string_view pattern);  // '*' stands for any text

}  // namespace ashlar::checkpoint
