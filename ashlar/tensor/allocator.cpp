#include "ashlar/tensor/allocator.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"
#include "ashlar/core/text.h"

namespace ashlar {

std::string_view name_of(Tag tag) {
  constexpr std::string_view kNames[kNumTags] = {"weights",   "gradients", "optimizer", "saved",
                                                 "workspace", "cache",     "input",     "comm"};
  return kNames[int(tag)];
}

namespace {

// Larger buffers come straight from the kernel: zeroed, in huge pages where it has them, and
// touched first by the thread that uses them.
constexpr int64_t kMappedBytes = int64_t{1} << 20;

std::byte* take_zeroed(int64_t size_bytes) {
  const auto size = size_t(size_bytes);
  if (size_bytes < kMappedBytes) {
    void* memory = std::aligned_alloc(kHostAlign, size);
    return memory ? static_cast<std::byte*>(std::memset(memory, 0, size)) : nullptr;
  }
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size, MADV_HUGEPAGE);  // a hint: kernels without huge pages refuse it
  return static_cast<std::byte*>(memory);
}

void give_to_system(std::byte* memory, int64_t size_bytes) {
  if (memory && size_bytes >= kMappedBytes)
    ASHLAR_ASSERT(munmap(memory, size_t(size_bytes)) == 0);
  else
    std::free(memory);
}

}  // namespace

int64_t machine_memory_bytes() {
  struct sysinfo info;
  ASHLAR_ASSERT(sysinfo(&info) == 0);  // fails for a bad address only
  return int64_t(info.totalram + info.totalswap) * int64_t(info.mem_unit);
}

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (allocator_) allocator_->give_back(*this);
  allocator_ = std::exchange(other.allocator_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  tag_ = other.tag_;
  return *this;
}

Buffer::~Buffer() {
  if (allocator_) allocator_->give_back(*this);
}

DeviceMemory* Buffer::device_memory() const {
  return allocator_ ? allocator_->device_memory() : nullptr;
}

Allocator::Allocator(Device device, int64_t limit_bytes, int64_t align)
    : device_(device), limit_bytes_(limit_bytes), align_(align) {
  ASHLAR_ASSERT(device != Device::kGpu && (device == Device::kMeta || align == kHostAlign));
}

Allocator::Allocator(DeviceMemory& memory)
    : device_(Device::kGpu), align_(kGpuAlign), foreign_(&memory), device_memory_(&memory) {}

Allocator::Allocator(ForeignMemory& memory) : device_(Device::kCpu), foreign_(&memory) {}

Allocator::~Allocator() {
  ASHLAR_ASSERT(counts_.total.current_bytes == 0);
}

Buffer Allocator::allocate(int64_t size_bytes, Tag tag) {
  ASHLAR_ASSERT(size_bytes >= 0);
  Buffer buffer;
  buffer.size_bytes_ = round_up(size_bytes, align_);
  buffer.tag_ = tag;
  if (!count(buffer))
    throw Error(ErrorKind::kMemory,
                fmt::format("the memory limit of {} leaves no room for {} of {}",
                            format_bytes(limit_bytes_), format_bytes(size_bytes), name_of(tag)),
                table());
  buffer.allocator_ = this;
  if (device_ == Device::kMeta || buffer.size_bytes_ == 0) return buffer;
  buffer.data_ = foreign_ ? foreign_->take(buffer.size_bytes_) : take_zeroed(buffer.size_bytes_);
  if (!buffer.data_)
    throw Error(ErrorKind::kMemory,
                fmt::format("the {} has no memory left for {} of {}",
                            device_ == Device::kGpu ? "GPU" : "machine", format_bytes(size_bytes),
                            name_of(tag)),
                table());
  return buffer;
}

bool Allocator::count(const Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  if (buffer.size_bytes_ > limit_bytes_ - counts_.total.current_bytes) return false;
  for (MemoryCount* count : {&counts_.tags[int(buffer.tag_)], &counts_.total}) {
    count->current_bytes += buffer.size_bytes_;
    count->peak_bytes = std::max(count->peak_bytes, count->current_bytes);
  }
  ++counts_.num_allocations;
  return true;
}

void Allocator::give_back(Buffer& buffer) {
  if (!foreign_)
    give_to_system(buffer.data_, buffer.size_bytes_);
  else if (buffer.data_)
    foreign_->give(buffer.data_, buffer.size_bytes_);
  const std::lock_guard lock(mutex_);
  counts_.tags[int(buffer.tag_)].current_bytes -= buffer.size_bytes_;
  counts_.total.current_bytes -= buffer.size_bytes_;
  buffer.allocator_ = nullptr;
}

MemoryCounts Allocator::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::string table_of(const MemoryCounts& now) {
  std::string text = fmt::format("{:<10} {:>18} {:>18}\n", "memory", "current bytes", "peak bytes");
  for (int tag = 0; tag < kNumTags; ++tag)
    text += fmt::format("{:<10} {:>18} {:>18}\n", name_of(Tag(tag)),
                        format_thousands(now.tags[tag].current_bytes),
                        format_thousands(now.tags[tag].peak_bytes));
  return text + fmt::format("{:<10} {:>18} {:>18}", "total",
                            format_thousands(now.total.current_bytes),
                            format_thousands(now.total.peak_bytes));
}

}  // namespace ashlar
