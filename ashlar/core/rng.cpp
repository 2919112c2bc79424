#include "ashlar/core/rng.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

constexpr int kFeistelRounds = 8;

uint64_t word_pair(uint32_t low, uint32_t high) {
  return uint64_t(high) << 32 | low;
}

// [0, 1) in steps of 2^-53.
double unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The upper half of a 64 x 64 bit product, from 32-bit halves.
uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  const uint64_t carry = a0 * b1 + (middle & 0xffffffffu);
  return a1 * b1 + (middle >> 32) + (carry >> 32);
}

}  // namespace

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * counter[0];
    const uint64_t p1 = uint64_t(0xCD9E8D57u) * counter[2];
    counter = {uint32_t(p1 >> 32) ^ counter[1] ^ key[0], uint32_t(p1),
               uint32_t(p0 >> 32) ^ counter[3] ^ key[1], uint32_t(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

Rng::Rng(uint64_t seed, std::string_view name)
    : key_(splitmix64(splitmix64(seed) ^ fnv1a64(name))) {}

std::array<uint32_t, 4> Rng::block(uint64_t counter) const {
  return philox4x32({uint32_t(counter), uint32_t(counter >> 32), 0, 0},
                    {uint32_t(key_), uint32_t(key_ >> 32)});
}

uint64_t Rng::bits(uint64_t index) const {
  const auto words = block(index);
  return word_pair(words[0], words[1]);
}

double Rng::uniform(uint64_t index) const {
  return unit(bits(index));
}

double Rng::normal(uint64_t index) const {
  const auto words = block(index);
  const double radius =
      1.0 - unit(word_pair(words[0], words[1]));  // (0, 1]: the logarithm is finite
  const double angle = unit(word_pair(words[2], words[3]));
  return std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * angle);
}

uint64_t Rng::below(uint64_t index, uint64_t bound) const {
  ASHLAR_ASSERT(bound > 0);
  return multiply_high(bits(index), bound);
}

Permutation::Permutation(uint64_t size, uint64_t key)
    : size_(size), key_(key), half_bits_(size <= 1 ? 0 : (std::bit_width(size - 1) + 1) / 2) {}

uint64_t Permutation::operator()(uint64_t index) const {
  ASHLAR_ASSERT(index < size_);
  if (half_bits_ == 0) return index;
  const uint64_t mask = (uint64_t(1) << half_bits_) - 1;
  uint64_t key = key_;
  std::array<uint64_t, kFeistelRounds> keys;
  for (uint64_t& round_key : keys) round_key = key = splitmix64(key);
  // The network permutes [0, 4^half_bits); walking its cycle until the value falls into [0, size)
  // permutes that subset.  The network is under four times as large: few steps are needed.
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (const uint64_t round_key : keys) {
      const uint64_t mixed = left ^ (splitmix64(right ^ round_key) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace ashlar
