// Any one rank of any world, on meta: operations build the rounds of a real world, but with all
// slices of a sum in one round, and count their bytes; no data moves.
#pragma once

#include "ashlar/comm/world.h"

namespace ashlar::comm {

class RecordingEngine final : public Engine {
 public:
  RecordingEngine(int rank, int size) : rank_(rank), size_(size) {
    ASHLAR_ASSERT(0 <= rank && rank < size);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool immediate() const override { return true; }
  std::unique_ptr<Transport> transport(std::string_view lane) override;
  void fail(const std::exception_ptr&) override {}

 private:
  int rank_, size_;
};

class RecordingWorld {
 public:
  // The allocator must be on meta; it counts the staging memory of the rank.
  RecordingWorld(int rank, int size, const Options& options, Allocator& allocator)
      : engine_(rank, size), world_(engine_, options, allocator) {
    ASHLAR_ASSERT(allocator.device() == Device::kMeta);
  }
  Group& group() { return world_.group; }

 private:
  RecordingEngine engine_;
  World world_;
};

}  // namespace ashlar::comm
