// The bytes that a rank wants from the chunks of a step: the common parts of stored boxes and its
// destinations.
//
// Memory   a BoxCopy (some 300 bytes) for each pair of overlapping boxes, and 16 bytes for each
//          chunk that the pair has bytes in.
// Threads  copy() from any, each byte once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/load/load_plan.h"
#include "ashlar/checkpoint/load/load_ranks.h"
#include "ashlar/checkpoint/load/step_reader.h"

namespace ashlar::checkpoint {

// The common part of a stored box and a destination, as runs that are contiguous in both.
class BoxCopy {
 public:
  BoxCopy(const IndexBox& stored, DType from, const Box& part, const Piece& destination);

  // Copies the part of it that is in these bytes, which begin at `offset` of the file.  Bytes may
  // come in any order.
  void copy(std::span<const std::byte> bytes, int64_t offset) const;
  // The number of bytes that it copies from [offset, end) of the file.
  int64_t bytes_between(int64_t offset, int64_t end) const;
  // Calls with the number of each chunk of the file that has bytes of it, ascending.
  template <typename F>
  void for_each_chunk(F&& call) const {
    int64_t next = 0;
    for (Runs runs = runs_; !runs.done(); runs.seek(element_at(next << kChunkLog2))) {
      const int64_t last = (begin_of(runs) + run_bytes_ - 1) >> kChunkLog2;
      for (next = std::max(next, begin_of(runs) >> kChunkLog2); next <= last; ++next) call(next);
    }
  }

 private:
  // An element of the stored box.  Offsets in it, chunks and blocks are multiples of elements.
  int64_t element_at(int64_t file_offset) const {
    return std::max<int64_t>(0, file_offset - begin_) / element_bytes_;
  }
  int64_t begin_of(const Runs& runs) const { return begin_ + runs.from() * element_bytes_; }
  void prefetch(std::span<const std::byte> bytes, int64_t begin) const;
  void copy_run(const std::byte* source, int64_t bytes, int64_t to) const;

  int64_t begin_;  // of the stored box in its file
  DType from_;
  Tensor to_;
  Runs runs_;
  int64_t element_bytes_, run_bytes_;  // as stored
};

class WantedBytes {
 public:
  WantedBytes(const StepReader& reader, const ChunkNumbers& chunks,
              std::span<const Piece> destinations);

  std::vector<ChunkRange> ranges() const;  // numbers of chunks, ascending
  // Copies what is wanted of these bytes of a chunk, which begin at `at` of it.
  void copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) const;
  // At least 15/16 of the chunk is wanted: another load that needs the rest may read it again.
  bool nearly_whole(int64_t chunk) const;

 private:
  int64_t begin_of(int64_t chunk) const;  // in its file
  template <typename F>
  void for_each_use(int64_t chunk, F&& call) const;

  const ChunkNumbers& chunks_;
  std::vector<BoxCopy> copies_;
  std::vector<std::pair<int64_t, uint32_t>> uses_;  // chunk, number in copies_
};

// The bytes that one rank wants, until it leaves.
class WantedByRank {
 public:
  explicit WantedByRank(const WantedBytes& wanted) : wanted_(&wanted) {}
  void copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes);
  void leave();  // waits for copies that are being made

 private:
  std::shared_mutex mutex_;
  const WantedBytes* wanted_;  // null: the rank has left
};

// The list in which ranks of one process find what the others want, by numbers.  A number is not
// used again when its rank has left.
class WantedByRanks {
 public:
  uint64_t add(std::shared_ptr<WantedByRank> wanted);
  void remove(uint64_t number);
  std::shared_ptr<WantedByRank> find(uint64_t number);  // null: removed

 private:
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::shared_ptr<WantedByRank>> by_number_;
};

// The bytes that all ranks which share memory with this one want (or this rank alone), so that the
// rank that reads a chunk copies it to all of them while the caches have it.
//
// Errors   a rank that leaves is copied to no more, and waits for copies that are being made.
class SharedWantedBytes {
 public:
  SharedWantedBytes(LoadRanks& ranks, const WantedBytes& own);  // every rank calls it
  void copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) const;

 private:
  // Is in the list until it is destroyed.
  struct Listed {
    Listed(std::shared_ptr<WantedByRanks> list, const WantedBytes& own);
    ~Listed();
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;

    const std::shared_ptr<WantedByRanks> list;
    const std::shared_ptr<WantedByRank> wanted;
    const uint64_t number;
  };
  Listed own_;
  std::vector<std::shared_ptr<WantedByRank>> all_;
};

}  // namespace ashlar::checkpoint
