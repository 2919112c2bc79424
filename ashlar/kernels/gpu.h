// A GPU for the modules that compute on it: its functions, its memory, and the order of its work.
// The folder kernels/gpu implements them.
//
// Every build has these.  A build without the kernels of a vendor finds no GPU (find_gpu); it plans
// for one, which takes the table and a DeviceSpec on meta.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/device_spec.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/log.h"
#include "ashlar/kernels/context.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/tensor/tensor.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::kernels {

namespace gpu {

extern const Ops kOps;  // functions that GPUs lack raise kDevice, on meta too

// The GPU that this program computes on: the known chip that it is, or what its driver says of it.
// Errors   kDevice, with the remedy: this build has no kernels for GPUs, there is no GPU, its
//          driver is too old, no kernel is compiled for its architecture, a library is missing.
DeviceSpec find_gpu();

// How a device is chosen: by a key of a recipe or by a flag.
struct GpuChoice {
  std::string_view option;      // "train.device"
  std::string_view choose_cpu;  // "train.device=cpu"
  bool asked = false;           // for a GPU, and for nothing else; false: one computes if it can
  std::string problem;          // why no GPU does the work, whatever GPU it is; "": one may
};
// The GPU that the choice means in this process; absent: the CPU.
// require_functions: plans the work on meta for that GPU, which calls every function of it.
// log: told which device, if the choice leaves it open and there is a GPU.
// Errors   kConfig if a GPU is asked for what none does; kDevice if it is asked for and not there,
//          or lacks functions.
std::optional<DeviceSpec> choose_gpu(const GpuChoice& choice,
                                     function_ref<void(const DeviceSpec&)> require_functions,
                                     Log& log);

// The type of products that `auto` means on a GPU.
inline constexpr DType kAutoCompute = DType::kBF16;

// Attention splits the keys of at most this many queries, for which it may take more workspace than
// for more queries.
inline constexpr int64_t kFewQueries = 64;

// kMemory, with the table, if the GPU has no room for the memory that is planned.
// what: the subject of the message ("the run"); remedy: how to need less.
void require_room(const MemoryCounts& planned, const DeviceSpec& gpu, std::string_view what,
                  std::string_view remedy);

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

// The memory of a run: as much of the GPU's as its plan says, and pinned memory of the host.  It
// outlives everything that computes in it.
class GpuMemory {
 public:
  explicit GpuMemory(int64_t device_bytes);
  Allocator& device() { return device_; }
  Allocator& pinned() { return pinned_; }
  Stream& stream() { return stream_; }

 private:
  Reservation reservation_;
  Allocator device_;
  PinnedMemory pinned_memory_;
  Allocator pinned_;
  Stream stream_;
};

}  // namespace gpu

// The members of a Context that depend on what computes: the CPU or a GPU.
struct ComputeDevice {
  const Ops* ops = &cpu::kOps;
  const DeviceSpec* spec = nullptr;  // of a GPU; null: the CPU
  gpu::Stream* stream = nullptr;     // of a GPU, except on meta

  static ComputeDevice gpu(const DeviceSpec& spec, gpu::Stream* stream = nullptr) {
    return {&gpu::kOps, &spec, stream};
  }
  int64_t align() const { return spec ? kGpuAlign : kHostAlign; }  // of its memory
};

}  // namespace ashlar::kernels
