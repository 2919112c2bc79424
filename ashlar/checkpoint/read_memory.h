// Memory that reads go through, lent to one load after the other: one who loads again and again
// does not find pages for it every time, which the system clears first.  All steps that are open
// share it, so that it is as much as their loads had at one time, and goes with the last of them.
//
// Errors   kMemory where the system refuses what is not there yet.
// Threads  take and give_back from several.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ashlar/core/aligned_memory.h"

namespace ashlar::checkpoint {

class ReadMemory {
 public:
  static std::shared_ptr<ReadMemory> of_open_steps() {
    static std::mutex mutex;
    static std::weak_ptr<ReadMemory> shared;
    const std::lock_guard lock(mutex);
    auto memory = shared.lock();
    if (!memory) shared = memory = std::make_shared<ReadMemory>();
    return memory;
  }

  AlignedMemory take(int64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (Kept& kept : kept_)
        if (kept.bytes >= bytes) {
          std::swap(kept, kept_.back());
          AlignedMemory memory = std::move(kept_.back().memory);
          kept_.pop_back();
          return memory;
        }
    }
    return aligned_memory(bytes, "reading a checkpoint");
  }
  // bytes: that were asked for.
  void give_back(AlignedMemory memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    kept_.push_back({bytes, std::move(memory)});
  }

 private:
  struct Kept {
    int64_t bytes;
    AlignedMemory memory;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace ashlar::checkpoint
