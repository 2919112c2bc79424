#include "ashlar/data/hf/byte_trie.h"

#include <bit>

namespace ashlar::data {

ByteTrie::ByteTrie(size_t num_bytes) {
  const size_t size = std::bit_ceil(num_bytes * 2 + 2);
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void ByteTrie::add(std::string_view text, int32_t value) {
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = uint32_t(values_.size());
      values_.push_back(-1);
      if (node == 0)
        first_[byte] = next;
      else if (const uint64_t key = uint64_t{node} << 8 | byte; true)
        slots_[slot_of(key)] = {key, next};
    }
    node = next;
  }
  values_[node] = value;
}

}  // namespace ashlar::data
