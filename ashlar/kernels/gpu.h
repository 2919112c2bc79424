// A GPU for the modules that compute on it: its functions, its memory, and the order of its work.
// The folder kernels/gpu implements them.
//
// Every build has these.  A build without the kernels of a vendor finds no GPU (find_gpu); it plans
// for one, which takes the table and a DeviceSpec on meta.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/device_spec.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/tensor/tensor.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::kernels {

struct Ops;  // ops.h

namespace gpu {

extern const Ops kOps;  // functions that GPUs lack raise kDevice, on meta too

// The GPU that this program computes on: the known chip that it is, or what its driver says of it.
// Errors   kDevice, with the remedy: this build has no kernels for GPUs, there is no GPU, its
//          driver is too old, no kernel is compiled for its architecture, a library is missing.
DeviceSpec find_gpu();

// Flop/s of products of F32 or BF16 by the data sheet of the chip; NaN: unknown.
double peak_of(const DeviceSpec& gpu, DType compute);

// One range of the GPU's memory, taken when it is made and cut into buffers.
//
// Errors   kMemory if the GPU has no room for it.
// Threads  any.
class Reservation final : public DeviceMemory {
 public:
  explicit Reservation(int64_t size_bytes);  // rounded up to 2 MiB
  ~Reservation() override;
  Reservation(const Reservation&) = delete;

  std::byte* take(int64_t size_bytes) override;
  void give(std::byte* data, int64_t size_bytes) override;
  void copy_to_host(std::byte* to, const std::byte* from, int64_t bytes) override;
  void copy_from_host(std::byte* to, const std::byte* from, int64_t bytes) override;

 private:
  const int64_t size_bytes_;
  std::byte* base_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // ranges by where they begin: their bytes
};

// Memory of the host that the GPU reads and writes by itself.
class PinnedMemory final : public ForeignMemory {
 public:
  std::byte* take(int64_t size_bytes) override;
  void give(std::byte* data, int64_t size_bytes) override;
};

// The way of lists from the host to the GPU, in the order of its work, and of results back.  An
// upload is copied into pinned memory and returns; nothing there is written again before the GPU
// was waited for.
//
// Errors   kDevice if a copy, or work before it, failed.
// Threads  one.
class Stream {
 public:
  static constexpr int64_t kRoomBytes = int64_t{64} << 20;  // far more than the lists of a step
  explicit Stream(Allocator& pinned);

  void upload(std::byte* to, const void* from, int64_t bytes);
  struct Download {
    void* to;
    const std::byte* from;
    int64_t bytes;
  };
  void download(std::span<const Download> list);  // waits once, if all of it has room
  void wait();                                    // until the GPU has run all that it was given
  int64_t num_waits() const { return num_waits_; }

 private:
  std::byte* room_for(int64_t bytes);
  Buffer room_;
  int64_t used_bytes_ = 0, num_waits_ = 0;
};

// The clock of a GPU, by events that it records in the order of its work: a mark waits for nothing.
// An event takes a few microseconds of the host, and is kept for the next marks once it is read.
//
// Errors   kDevice if the GPU did not record.
// Threads  that of the stream.
class EventClock final : public DeviceClock {
 public:
  explicit EventClock(Stream& stream) : stream_(stream) {}
  ~EventClock() override;
  EventClock(const EventClock&) = delete;

  void mark() override;
  // Waits for the stream, twice if there is a mark: the second time for an event beside which it
  // reads the host's clock, when the GPU has nothing else to do.
  std::vector<double> read() override;

 private:
  Stream& stream_;
  std::vector<void*> events_;
  size_t num_marks_ = 0;
};

}  // namespace gpu
}  // namespace ashlar::kernels
