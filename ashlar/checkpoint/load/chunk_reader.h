// Reads chunks of a step ahead of the thread that takes them: several at a time, in the order
// given, each checked against its CRC.  Chunks that are to be kept go into a ring of buffers.
//
// Memory   at most buffer_bytes, for as many lots as fit; and 512 KiB for each read in flight, or a
//          chunk if nothing is kept and reads are direct.
// Errors   kept by place, the number of the chunk, until failures() returns them.  Chunks after the
//          first failure are not read, unless damage is only listed (kAll); chunks before it are
//          read, so that the first failure is the same in every run.
// Threads  one thread takes; `taken` is called on the reader's own threads.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ashlar/checkpoint/load/load_plan.h"
#include "ashlar/checkpoint/load/load_ranks.h"
#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/core/aligned_memory.h"

namespace ashlar::checkpoint {

struct ChunkReaderOptions {
  int reads_in_flight = 8;
  int64_t buffer_bytes = 3 * kMaxLotBytes;  // of all lots in flight, of which there is at least one
  enum class Failures : uint8_t { kFirst, kAll } failures = Failures::kFirst;  // kAll: of damage
};

class ChunkReader {
 public:
  struct Part {
    ChunkRange chunks;
    bool kept = false;    // for the thread that takes the lot
    bool direct = false;  // past the system's memory
  };
  using Lots = std::vector<std::vector<Part>>;
  using Taken = std::function<void(int64_t chunk, int64_t at, std::span<const std::byte> bytes)>;
  // taken: bytes of a chunk, from `at` on, were read; they are valid during the call.  Whether they
  // are right is known only at the end of the chunk: see failures().
  ChunkReader(const StepReader& reader, const ChunkNumbers& chunks, const Lots& lots,
              const ChunkReaderOptions& options, Taken taken);
  ~ChunkReader();  // ends the reads
  ChunkReader(const ChunkReader&) = delete;

  // Waits until all chunks of the next lot were read and taken, or failed, and returns those that
  // are kept, each padded.  The bytes of a chunk that failed are undefined.
  std::span<std::byte> next();
  void release();  // the lot that next() gave

  std::vector<LoadFailure> failures() const;  // by place
  int64_t bytes_read() const;                 // of chunks that are right
  int64_t buffer_bytes() const {
    return int64_t(buffers_.size()) * buffer_size_ + int64_t(threads_.size()) * block_bytes_;
  }

 private:
  struct Task {
    int64_t chunk;  // number
    size_t lot, file;
    int64_t offset, bytes;  // in the buffer of the lot, which has it if it is kept
    bool kept, direct;
  };
  // A file that several tasks read: open from the first of them to the last.
  struct Shared {
    explicit Shared(size_t index) : index(index) {}
    const size_t index;
    size_t tasks_left = 0;
    std::mutex mutex;
    std::shared_ptr<File> file = nullptr;
  };
  void plan(const Lots& lots);
  void work(std::span<std::byte> block);  // of this thread
  void run(const Task& task, std::span<std::byte> block);
  void read(const Task& task, Shared& shared, std::span<std::byte> memory);
  void fail(LoadFailure failure);
  std::span<std::byte> buffer(size_t lot) const;

  const StepReader& reader_;
  const ChunkNumbers& chunks_;
  const ChunkReaderOptions options_;
  const Taken taken_;
  std::vector<Task> tasks_;
  std::vector<int64_t> lot_bytes_;
  std::vector<std::unique_ptr<Shared>> files_;
  std::vector<AlignedMemory> buffers_;
  int64_t buffer_size_ = 0;
  int64_t block_bytes_ = 0;   // of each thread, for chunks that are not kept
  ReadMemory::Block blocks_;  // of all threads

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<size_t> tasks_left_;  // by lot
  size_t next_task_ = 0, next_lot_ = 0, released_ = 0;
  int64_t bytes_read_ = 0;
  std::vector<LoadFailure> failures_;
  int64_t first_failure_ = INT64_MAX;
  std::exception_ptr broken_;  // an exception that is no Error
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace ashlar::checkpoint
