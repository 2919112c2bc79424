// Remembers the ids of parts of texts, most of which are words that come again.
//
// Threads  lease() gives a thread a cache of its own until the lease ends; a later one may go on
//          with it.
// Memory   at most kSlots parts of kMostBytes and kMostIds each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace ashlar::data {

class PartCache {
 public:
  static constexpr size_t kMostBytes = 40, kMostIds = 14;
  static constexpr size_t kSlots = size_t(1) << 15;

  struct Known {
    std::span<const int32_t> ids;  // empty: the part is not known
    float margin = 0;
  };
  // The ids and the margin that add() was given with a part.
  Known find(std::string_view part) const {
    const Slot& slot = slots_[slot_of(part)];
    const bool same = slot.num_bytes == part.size() &&
                      part == std::string_view(slot.bytes.data(), slot.num_bytes);
    if (!same) return {};
    return {{slot.ids.data(), slot.num_ids}, slot.margin};
  }
  // Does nothing with too long ones.
  void add(std::string_view part, std::span<const int32_t> ids, float margin = 0);

 private:
  struct Slot {
    uint8_t num_bytes = 0, num_ids = 0;
    float margin = 0;
    std::array<char, kMostBytes> bytes;
    std::array<int32_t, kMostIds> ids;
  };
  static size_t slot_of(std::string_view part);
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

class PartCaches {
 public:
  class Lease {
   public:
    explicit Lease(PartCaches& caches) : caches_(caches), cache_(caches.take()) {}
    ~Lease() { caches_.give_back(std::move(cache_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    PartCache& operator*() { return *cache_; }

   private:
    PartCaches& caches_;
    std::unique_ptr<PartCache> cache_;
  };

 private:
  std::unique_ptr<PartCache> take();
  void give_back(std::unique_ptr<PartCache> cache);
  std::mutex mutex_;
  std::vector<std::unique_ptr<PartCache>> idle_;
};

}  // namespace ashlar::data
