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

enum class Device : uint8_t { kCpu, kMeta };

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
  std::byte* data() const { return data_; }  // 64-byte aligned; null on meta
  int64_t size_bytes() const { return size_bytes_; }

 private:
  friend class Allocator;
  Allocator* allocator_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  Tag tag_ = Tag::kWorkspace;
};

class Allocator {
 public:
  explicit Allocator(Device device, int64_t limit_bytes = INT64_MAX);
  ~Allocator();  // asserts that every buffer has been returned
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  Device device() const { return device_; }
  Buffer allocate(int64_t size_bytes, Tag tag);  // zeroed
  MemoryCounts counts() const;
  std::string table() const;  // one line per tag: current, peak

 private:
  friend class Buffer;
  bool count(const Buffer& buffer);  // false: over the limit
  void give_back(Buffer& buffer);
  Device device_;
  int64_t limit_bytes_;
  mutable std::mutex mutex_;
  MemoryCounts counts_;
};

}  // namespace ashlar
