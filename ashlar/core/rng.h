// Random numbers as a function of logical coordinates: (seed, name, index) gives the same number on
// any rank, thread or layout, and in any order of calls.
//
// Source  Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
//         Key = mix(seed, fnv1a64(name)); counter = index.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ashlar {

uint64_t fnv1a64(std::string_view text);
uint64_t splitmix64(uint64_t x);

// Ten rounds of Philox4x32, as the paper numbers the words.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// All numbers of one index come from one block: use one kind of number per index and name.
class Rng {
 public:
  Rng(uint64_t seed, std::string_view name);
  std::array<uint32_t, 4> block(uint64_t counter) const;  // Philox of (counter, 0)
  uint64_t bits(uint64_t index) const;                    // 64 uniform bits
  double uniform(uint64_t index) const;                   // [0, 1), 53 bits
  double normal(uint64_t index) const;                    // mean 0, deviation 1 (Box-Muller)
  uint64_t below(uint64_t index, uint64_t bound) const;   // [0, bound); bias under bound / 2^64

 private:
  uint64_t key_;
};

// A bijection of [0, size) keyed by `key`: a Feistel network over the next power of four with cycle
// walking.  It takes O(1) memory, so a shuffled data order needs no index file.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t size_, key_;
  int half_bits_;
};

}  // namespace ashlar
