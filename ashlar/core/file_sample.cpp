#include "ashlar/core/file_sample.h"

#include <algorithm>
#include <vector>

#include "ashlar/core/checksum.h"
#include "ashlar/core/rng.h"

namespace ashlar {

uint64_t sample_hash(const File& file) {
  constexpr int64_t kBlocks = 64, kBlockBytes = 4096;
  const int64_t size = file.size(), block = std::min(kBlockBytes, size);
  const bool whole = size <= kBlocks * kBlockBytes;
  std::vector<std::byte> bytes(size_t(whole ? size : block));
  uint64_t hash = splitmix64(uint64_t(size));
  for (int64_t i = 0; i < (whole ? 1 : kBlocks); ++i) {
    file.read_at(bytes, whole ? 0
                              : (size - block) / (kBlocks - 1) * i +
                                    (size - block) % (kBlocks - 1) * i / (kBlocks - 1));
    hash = splitmix64(hash ^ xxh3_64(bytes));
  }
  return hash;
}

}  // namespace ashlar
