#include "ashlar/tensor/host_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ashlar {
namespace {

TEST(HostBytes, GoBothWaysAtAnyOffset) {
  constexpr size_t kSize = 1000, kBegin = 64;
  std::vector<std::byte> memory(kSize), bytes(kSize), back(kSize);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = std::byte(i * 7 + 1);
  const Tensor tensor{memory.data() + kBegin, DType::kU8, Device::kCpu, Shape{kSize - kBegin}};
  for (size_t offset = 0; offset < 20; ++offset)
    for (const size_t count : {size_t(0), size_t(1), size_t(3), size_t(17), size_t(900)}) {
      std::fill(memory.begin(), memory.end(), std::byte{0});
      copy_from_host(tensor, int64_t(offset), std::span(bytes).first(count));
      finish_copies_from_host();
      copy_to_host(tensor, int64_t(offset), std::span(back).first(count));
      for (size_t i = 0; i < kSize; ++i) {
        const size_t at = i - kBegin - offset;  // wraps where nothing was written
        ASSERT_EQ(memory[i], at < count ? bytes[at] : std::byte{0}) << offset << " " << count;
      }
      EXPECT_TRUE(std::equal(back.begin(), back.begin() + int64_t(count), bytes.begin()));
    }
}

}  // namespace
}  // namespace ashlar
