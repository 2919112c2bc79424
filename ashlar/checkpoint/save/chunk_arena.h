// Host memory that snapshots pass through: chunks of kChunkBytes, taken once from the system and
// reused for every save.  The chunk freed last is used first: its pages are warm.
//
// Errors   kMemory if the system refuses the memory.
// Threads  acquire and release from any thread; acquire waits while all chunks are taken.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::checkpoint {

// The memory that snapshots of one writer may take: asked_bytes, or if that is 0 its share, among
// the writers of this machine, of a quarter of the memory that the machine or the container has.
int64_t snapshot_limit_bytes(int64_t asked_bytes, int local_writers);

class ChunkArena {
 public:
  explicit ChunkArena(int64_t num_chunks);  // >= 1; pages are touched when first used
  int64_t size_bytes() const;
  int64_t acquire();
  void release(int64_t chunk);
  std::span<std::byte> bytes(int64_t chunk);
  // Takes and touches one chunk after the other until all are touched or is_over() returns true;
  // then frees them.  So the chunk that the next save takes first is a touched one.
  void touch(function_ref<bool()> is_over);

 private:
  int64_t num_chunks_;
  AlignedMemory memory_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<int64_t> free_;
};

}  // namespace ashlar::checkpoint
