// Loads batches on a separate thread, a few ahead of the trainer.
//
// The batches and their states are those of the loader: batches that were prefetched but not taken
// are in no state that the trainer holds.
//
// Threads  next() is for one thread.  It throws the loader's errors, after the batches that were
//          loaded before them, and again at every later call.  The destructor waits for
//          the batch that is being loaded.  With `depth` batches in flight nothing is allocated in
//          steady state.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/data/loader.h"

namespace ashlar::data {

class Prefetcher {
 public:
  explicit Prefetcher(Loader loader, int depth = 2);  // depth >= 2
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  void next(Batch& batch);  // swaps: the memory of `batch` is reused for a later one
  double stall_s() const;   // time that next() has waited, in all
  int64_t batches_per_step() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::data
