#include "ashlar/data/hf/part_cache.h"

#include <algorithm>

#include "ashlar/core/checksum.h"

namespace ashlar::data {

size_t PartCache::slot_of(std::string_view part) {
  return xxh3_64(std::as_bytes(std::span(part.data(), part.size()))) % kSlots;
}

void PartCache::add(std::string_view part, std::span<const int32_t> ids, float margin) {
  if (part.size() > kMostBytes || ids.size() > kMostIds) return;
  Slot& slot = slots_[slot_of(part)];
  slot.num_bytes = uint8_t(part.size());
  slot.num_ids = uint8_t(ids.size());
  slot.margin = margin;
  std::ranges::copy(part, slot.bytes.begin());
  std::ranges::copy(ids, slot.ids.begin());
}

std::unique_ptr<PartCache> PartCaches::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<PartCache> cache = std::move(idle_.back());
      idle_.pop_back();
      return cache;
    }
  }
  return std::make_unique<PartCache>();
}

void PartCaches::give_back(std::unique_ptr<PartCache> cache) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(cache));
}

}  // namespace ashlar::data
