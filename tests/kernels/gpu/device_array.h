// An array in the memory of the device, for tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/kernels/gpu/launch.h"

namespace ashlar::device {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size), data_(static_cast<T*>(take(size * sizeof(T)))) {
    if (!data_) ADD_FAILURE() << "no device memory for " << size << " elements";
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(copy_bytes(data_, values.data(), size_ * sizeof(T)), "");
  }
  ~DeviceArray() { give(data_); }
  DeviceArray(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> values() const {
    std::vector<T> values(size_);
    EXPECT_EQ(copy_bytes(values.data(), data_, size_ * sizeof(T)), "");
    return values;
  }

 private:
  size_t size_;
  T* data_;
};

// A number that stands for all bits of the values (FNV-1a).
template <typename T>
uint64_t checksum(const std::vector<T>& values, uint64_t sum = 14695981039346656037u) {
  for (const std::byte b : std::as_bytes(std::span(values)))
    sum = (sum ^ uint64_t(b)) * 1099511628211u;
  return sum;
}

// Uniform in -1 to 1 in steps of 2^-8, so that bf16 and fp32 hold them exactly.
inline std::vector<float> steps_of_256(size_t size, uint32_t seed) {
  std::vector<float> values(size);
  for (float& x : values) {
    seed = seed * 1664525u + 1013904223u;
    x = float(int(seed >> 23) - 256) / 256.0f;
  }
  return values;
}
inline std::vector<uint16_t> bf16_bits(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float x : values) bits.push_back(uint16_t(std::bit_cast<uint32_t>(x) >> 16));
  return bits;
}

}  // namespace ashlar::device
