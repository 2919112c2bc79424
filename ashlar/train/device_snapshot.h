// Snapshots of a state in the memory of a GPU, brought to the host beside the steps that follow.
//
//   the run's thread      follow(), before the save is queued; cancel(), if it is not;
//                         before_update()
//   the copying thread    begin(), read() .., end() (checkpoint::SnapshotSource)
//
// Copies are queued as far ahead of the reads as the slots reach (kernels/side_copies.h).  The GPU
// makes the next update wait for them, and the host waits in before_update() only until all are
// queued: at once where the slots hold the snapshot, else until the copying thread has emptied
// enough of them.
//
// Errors   kDevice if the GPU fails.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/kernels/side_copies.h"

namespace ashlar::train {

class DeviceSnapshot final : public checkpoint::SnapshotSource {
 public:
  explicit DeviceSnapshot(kernels::gpu::SideCopies& copies);

  // A save begins of the state that all work queued so far leaves: the next begin() and end().
  void follow();
  void cancel();  // that save was refused
  // Makes the work that is queued from now on, which changes what the save reads, wait for it.
  void before_update();

  void begin(std::span<const checkpoint::FilePlan> files) override;
  void read(const checkpoint::FilePlan::Source& source, int64_t offset,
            std::span<std::byte> out) override;
  void end() noexcept override;

 private:
  // Consecutive bytes that are still to be queued.
  struct Run {
    const std::byte* from;
    int64_t bytes;
  };
  void add_runs(const checkpoint::FilePlan::Source& source);
  void queue_ahead();
  void fill_slot(int64_t slot);
  void await(int64_t slot) const;
  void tell_queued();

  kernels::gpu::SideCopies& copies_;
  // The copying thread's.  Slot n of the snapshot is slot n % num_slots of the copies.
  std::vector<Run> runs_;
  size_t next_run_ = 0;
  std::vector<int64_t> slot_bytes_;  // of each slot of the copies
  int64_t queued_ = 0, read_ = 0;    // slots of the snapshot
  int64_t at_ = 0;                   // bytes read of the slot that is being read
  bool told_ = false;                // that all copies of this snapshot are queued

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int num_unqueued_ = 0;  // saves from follow() until all their copies are queued
  bool is_held_ = true;   // the work waits for all copies of the last save
};

}  // namespace ashlar::train
