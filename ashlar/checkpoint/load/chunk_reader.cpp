#include "ashlar/checkpoint/load/chunk_reader.h"

#include <algorithm>

#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {

ChunkReader::ChunkReader(const StepReader& reader, const ChunkNumbers& chunks, const Lots& lots,
                         const ChunkReaderOptions& options, Taken taken)
    : reader_(reader), chunks_(chunks), options_(options), taken_(std::move(taken)) {
  ASHLAR_ASSERT(options.reads_in_flight >= 1);
  plan(lots);
  // Lots that keep nothing need no memory: then there are enough in flight for all threads.
  const auto most =
      size_t(buffer_size_ > 0 ? std::max<int64_t>(1, options.buffer_bytes / buffer_size_)
                              : options.reads_in_flight);
  buffers_.resize(std::min(most, lots.size()));
  if (buffer_size_ > 0)
    for (auto& buffer : buffers_) buffer = aligned_memory(buffer_size_, "reading a checkpoint");
  const bool whole = buffer_size_ == 0 && std::ranges::any_of(tasks_, &Task::direct);
  block_bytes_ = whole ? kChunkBytes : StepReader::kBlockBytes;
  const size_t num_threads = std::min(size_t(options.reads_in_flight), tasks_.size());
  if (num_threads > 0) blocks_ = reader.read_memory().take(int64_t(num_threads) * block_bytes_);
  try {
    for (size_t i = 0; i < num_threads; ++i)
      threads_.push_back(start_thread("that reads a checkpoint", [this, i] {
        work({blocks_.memory.get() + i * size_t(block_bytes_), size_t(block_bytes_)});
      }));
  } catch (const Error&) {
    if (threads_.empty()) throw;  // fewer threads do as well
  }
}

ChunkReader::~ChunkReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (blocks_.memory) reader_.read_memory().give_back(std::move(blocks_));
}

void ChunkReader::plan(const Lots& lots) {
  for (const std::vector<Part>& parts : lots) {
    const size_t lot = lot_bytes_.size();
    int64_t offset = 0;
    size_t count = 0;
    for (const Part& part : parts)
      for (int64_t chunk = part.chunks.begin; chunk < part.chunks.end; ++chunk, ++count) {
        const size_t file = chunks_.file(chunk);
        if (files_.empty() || files_.back()->index != file)
          files_.push_back(std::make_unique<Shared>(file));
        ++files_.back()->tasks_left;
        tasks_.push_back(
            {chunk, lot, files_.size() - 1, offset, chunks_.bytes(chunk), part.kept, part.direct});
        if (part.kept) offset += padded(tasks_.back().bytes);
      }
    lot_bytes_.push_back(offset);
    tasks_left_.push_back(count);
    buffer_size_ = std::max(buffer_size_, offset);
  }
}

std::span<std::byte> ChunkReader::buffer(size_t lot) const {
  return {buffers_[lot % buffers_.size()].get(), size_t(lot_bytes_[lot])};
}

std::span<std::byte> ChunkReader::next() {
  std::unique_lock lock(mutex_);
  const size_t lot = next_lot_++;
  changed_.wait(lock, [&] { return broken_ || tasks_left_[lot] == 0; });
  if (broken_) std::rethrow_exception(broken_);
  return buffer(lot);
}

void ChunkReader::release() {
  {
    const std::lock_guard lock(mutex_);
    ++released_;
    ASHLAR_ASSERT(released_ <= next_lot_);
  }
  changed_.notify_all();
}

std::vector<LoadFailure> ChunkReader::failures() const {
  const std::lock_guard lock(mutex_);
  std::vector<LoadFailure> sorted = failures_;
  std::sort(sorted.begin(), sorted.end(),
            [](const LoadFailure& a, const LoadFailure& b) { return a.place < b.place; });
  return sorted;
}

int64_t ChunkReader::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

void ChunkReader::work(std::span<std::byte> block) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return stop_ || next_task_ == tasks_.size() ||
             tasks_[next_task_].lot < released_ + buffers_.size();
    });
    if (stop_ || next_task_ == tasks_.size()) return;
    const Task& task = tasks_[next_task_++];
    const bool wanted = task.chunk < first_failure_;
    lock.unlock();
    if (wanted) run(task, block);
    lock.lock();
    if (--tasks_left_[task.lot] == 0) changed_.notify_all();
  }
}

void ChunkReader::run(const Task& task, std::span<std::byte> block) {
  Shared& shared = *files_[task.file];
  try {
    const auto failure = failure_of(task.chunk, [&] {
      read(task, shared,
           task.kept ? buffer(task.lot).subspan(size_t(task.offset), size_t(task.bytes)) : block);
    });
    if (failure) fail(*failure);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    broken_ = std::current_exception();
    changed_.notify_all();
  }
  const std::lock_guard lock(shared.mutex);
  if (--shared.tasks_left == 0) shared.file.reset();
}

void ChunkReader::read(const Task& task, Shared& shared, std::span<std::byte> memory) {
  const int64_t chunk = task.chunk - chunks_.first(shared.index);
  std::shared_ptr<File> file;
  const auto open = [&](bool again) {
    const std::lock_guard lock(shared.mutex);
    if (!shared.file || (again && shared.file == file)) shared.file = reader_.open(shared.index);
    file = shared.file;
  };
  open(false);
  const auto take = [&](int64_t at, std::span<const std::byte> bytes) {
    taken_(task.chunk, at, bytes);
  };
  while (!reader_.read_chunk(*file, shared.index, chunk, task.direct, memory, take)) open(true);
  const std::lock_guard lock(mutex_);
  bytes_read_ += task.bytes;
}

void ChunkReader::fail(LoadFailure failure) {
  const std::lock_guard lock(mutex_);
  const bool listed = options_.failures == ChunkReaderOptions::Failures::kAll &&
                      failure.kind == ErrorKind::kCorrupt;
  if (!listed) first_failure_ = std::min(first_failure_, failure.place);
  failures_.push_back(std::move(failure));
}

}  // namespace ashlar::checkpoint
