// Texts by their bytes, to find those that a text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ashlar/core/function_ref.h"

namespace ashlar::data {

class ByteTrie {
 public:
  explicit ByteTrie(size_t num_bytes);             // of all texts together, at most
  void add(std::string_view text, int32_t value);  // not empty; the last of equals counts
  // Calls `found` for every text that `text` begins with, the shortest first.
  template <typename Found>  // void(size_t length, int32_t value)
  void find(std::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      node = child(node, static_cast<unsigned char>(text[at]));
      if (node == 0) return;
      if (values_[node] >= 0) found(at + 1, values_[node]);
    }
  }

 private:
  struct Slot {
    uint64_t key = kFree;
    uint32_t node = 0;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t slot_of(uint64_t key) const {
    size_t slot = size_t(key * 0x9E3779B97F4A7C15ull >> shift_);
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & mask_;
    return slot;
  }
  uint32_t child(uint32_t node, unsigned char byte) const {  // 0: none
    if (node == 0) return first_[byte];
    return slots_[slot_of(uint64_t{node} << 8 | byte)].node;
  }

  std::array<uint32_t, 256> first_{};
  std::vector<Slot> slots_;  // an open hash table of (node, byte)
  std::vector<int32_t> values_{-1};
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace ashlar::data
