// Memory whose borders the emulator watches.
#pragma once

#include <cstddef>

namespace ashlar::device::emulator {

inline constexpr size_t kPageBytes = 4096;

// Memory that begins as NaN in every floating type.  It ends, rounded up to 16 bytes, where a page
// begins that no access may touch.  The bytes in front of it and up to that page are NaN too;
// `intact` tells whether a write has changed them.
class WatchedMemory {
 public:
  explicit WatchedMemory(size_t bytes);
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void poison();  // as at the beginning
  bool intact() const;
  void allow_access(bool allowed);  // to any of it, poisoned borders too

 private:
  std::byte* border_begin() const;  // of the watched bytes before the start
  std::byte* border_end() const;    // of those behind the end
  size_t bytes_, mapped_bytes_;
  std::byte *mapped_, *data_;
};

}  // namespace ashlar::device::emulator
