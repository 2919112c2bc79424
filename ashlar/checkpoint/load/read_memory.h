// Memory that reads go through, lent to one load after the other, so that not every load needs new
// pages, which the system clears first.  Readers that share one object take together as much as
// their loads had at one time; it is freed with the last of them.
//
// Errors   kMemory if the system refuses more memory.
// Threads  take and give_back from several.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "ashlar/core/aligned_memory.h"

namespace ashlar::checkpoint {

class ReadMemory {
 public:
  struct Block {
    AlignedMemory memory;
    int64_t bytes = 0;  // at least as many as were asked for
  };

  Block take(int64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (Block& block : free_)
        if (block.bytes >= bytes) {
          std::swap(block, free_.back());
          Block taken = std::move(free_.back());
          free_.pop_back();
          return taken;
        }
    }
    return {aligned_memory(bytes, "reading a checkpoint"), bytes};
  }
  void give_back(Block block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<Block> free_;
};

}  // namespace ashlar::checkpoint
