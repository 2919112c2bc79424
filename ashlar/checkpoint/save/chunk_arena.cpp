#include "ashlar/checkpoint/save/chunk_arena.h"

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/core/process.h"

namespace ashlar::checkpoint {

int64_t snapshot_limit_bytes(int64_t asked_bytes, int local_writers) {
  constexpr int64_t kMemoryShare = 4;
  return asked_bytes > 0 ? asked_bytes : memory_limit_bytes() / kMemoryShare / local_writers;
}

ChunkArena::ChunkArena(int64_t num_chunks)
    : num_chunks_(num_chunks),
      memory_(aligned_memory(num_chunks * kChunkBytes, "checkpoint snapshots")) {
  for (int64_t chunk = num_chunks - 1; chunk >= 0; --chunk) free_.push_back(chunk);
}

int64_t ChunkArena::size_bytes() const {
  return num_chunks_ * kChunkBytes;
}

int64_t ChunkArena::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return !free_.empty(); });
  const int64_t chunk = free_.back();
  free_.pop_back();
  return chunk;
}

void ChunkArena::release(int64_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(chunk);
  }
  freed_.notify_one();
}

std::span<std::byte> ChunkArena::bytes(int64_t chunk) {
  return {memory_.get() + chunk * kChunkBytes, size_t(kChunkBytes)};
}

void ChunkArena::touch(function_ref<bool()> is_over) {
  constexpr size_t kPageBytes = 4096;
  std::vector<int64_t> touched;
  while (int64_t(touched.size()) < num_chunks_ && !is_over()) {
    touched.push_back(acquire());
    const auto chunk = bytes(touched.back());
    for (size_t at = 0; at < chunk.size(); at += kPageBytes) chunk[at] = std::byte{0};
  }
  for (const int64_t chunk : touched) release(chunk);
}

}  // namespace ashlar::checkpoint
