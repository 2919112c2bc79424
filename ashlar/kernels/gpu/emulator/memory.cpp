#include "ashlar/kernels/gpu/emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace ashlar::device::emulator {
namespace {

constexpr size_t kVectorBytes = 16, kBorderBytes = 64;
constexpr int kPoison = 0xff;

size_t rounded_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

bool all_poison(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == std::byte(kPoison); });
}

}  // namespace

WatchedMemory::WatchedMemory(size_t bytes)
    : bytes_(bytes),
      mapped_bytes_(rounded_up(rounded_up(bytes, kVectorBytes) + kBorderBytes, kPageBytes) +
                    kPageBytes) {
  void* memory =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<std::byte*>(memory);
  std::byte* end = mapped_ + mapped_bytes_ - kPageBytes;
  data_ = end - rounded_up(bytes, kVectorBytes);
  mprotect(end, kPageBytes, PROT_NONE);
  // Large pages, for access to all of it may change at every launch.
  madvise(mapped_, mapped_bytes_ - kPageBytes, MADV_HUGEPAGE);
  poison();
}

WatchedMemory::~WatchedMemory() {
  munmap(mapped_, mapped_bytes_);
}

void WatchedMemory::allow_access(bool allowed) {
  mprotect(mapped_, mapped_bytes_ - kPageBytes, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
}

std::byte* WatchedMemory::border_begin() const {
  return data_ - kBorderBytes;
}
std::byte* WatchedMemory::border_end() const {
  return data_ + rounded_up(bytes_, kVectorBytes);
}

void WatchedMemory::poison() {
  std::memset(border_begin(), kPoison, size_t(border_end() - border_begin()));
}

bool WatchedMemory::intact() const {
  return all_poison(border_begin(), data_) && all_poison(data_ + bytes_, border_end());
}

}  // namespace ashlar::device::emulator
