// Memory whose borders the emulator watches.
#pragma once

#include <cstddef>

namespace ashlar::device::emulator {

inline constexpr size_t kPageBytes = 4096;

// Bytes that begin as NaN in every floating type.  Their end, rounded up to 16 bytes, is the start
// of a page that nobody may touch; the bytes between are NaN too, and so are those before the
// start, and `intact` tells whether a write has changed any of them.
class WatchedMemory {
 public:
  explicit WatchedMemory(size_t bytes);
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void poison();  // as at the beginning
  bool intact() const;

 private:
  std::byte* border_begin() const;  // of the watched bytes before the start
  std::byte* border_end() const;    // of those behind the end
  size_t bytes_, mapped_bytes_;
  std::byte *mapped_, *data_;
};

}  // namespace ashlar::device::emulator
