// Memory with an owner and a purpose.  An Allocator counts bytes and their peaks by tag.  On the
// meta device it counts but hands out no bytes, so a dry run's count is the real run's count.
//
// Errors   kMemory when the limit is passed or the machine refuses; the message is the table by
//          tag.
// Threads  allocate and free from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace ashlar {

enum class Device : uint8_t { kCpu, kMeta, kGpu };

// Sizes and addresses of buffers are multiples of these.
inline constexpr int64_t kHostAlign = 64, kGpuAlign = 256;

enum class Tag : uint8_t {
  kWeights,  // master weights and their packed compute forms
  kGradients,
  kOptimizer,      // moments, momentum, balancing state
  kSaved,          // kept by forward for backward
  kWorkspace,      // dead after the call that took it
  kCache,          // decode caches
  kInput,          // token batches
  kCommunication,  // contributions of other ranks that wait to be summed
};
inline constexpr int kNumTags = 8;
std::string_view name_of(Tag tag);

struct MemoryCount {
  int64_t current_bytes = 0, peak_bytes = 0;
};
struct MemoryCounts {
  std::array<MemoryCount, kNumTags> tags;
  MemoryCount total;
  int64_t num_allocations = 0;  // since the start; a step in a running training adds none
};

// Memory that the system does not hand out, behind an Allocator.
class ForeignMemory {
 public:
  virtual ~ForeignMemory() = default;
  virtual std::byte* take(int64_t size_bytes) = 0;  // zeroed; null: there is no room
  virtual void give(std::byte* data, int64_t size_bytes) = 0;
};

// Memory that the host reads and writes through copies alone.
class DeviceMemory : public ForeignMemory {
 public:
  // When they return, the bytes are there.  They wait for the work of the device.
  virtual void copy_to_host(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void copy_from_host(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

std::string table_of(const MemoryCounts& counts);  // one line per tag: current, peak

// The memory of this machine, with swap.
int64_t machine_memory_bytes();

class Allocator;

// Owns bytes and gives them back to its allocator.  Movable; empty after a move.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() const { return data_; }  // null on meta
  int64_t size_bytes() const { return size_bytes_; }
  DeviceMemory* device_memory() const;  // that it is a part of; null: the host's, or meta

 private:
  friend class Allocator;
  Allocator* allocator_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  Tag tag_ = Tag::kWorkspace;
};

class Allocator {
 public:
  // An allocator of the CPU, or on meta of the memory that is planned for, with its alignment.
  explicit Allocator(Device device, int64_t limit_bytes = INT64_MAX, int64_t align = kHostAlign);
  explicit Allocator(DeviceMemory& memory);   // Device::kGpu
  explicit Allocator(ForeignMemory& memory);  // Device::kCpu
  ~Allocator();                               // asserts that every buffer has been returned
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  Device device() const { return device_; }
  DeviceMemory* device_memory() const { return device_memory_; }  // null: the host's, or meta
  Buffer allocate(int64_t size_bytes, Tag tag);                   // zeroed
  MemoryCounts counts() const;
  std::string table() const { return table_of(counts()); }

 private:
  friend class Buffer;
  bool count(const Buffer& buffer);  // false: over the limit
  void give_back(Buffer& buffer);
  const Device device_;
  const int64_t limit_bytes_ = INT64_MAX, align_ = kHostAlign;
  ForeignMemory* const foreign_ = nullptr;  // null: the system's
  DeviceMemory* const device_memory_ = nullptr;
  mutable std::mutex mutex_;
  MemoryCounts counts_;
};

}  // namespace ashlar
