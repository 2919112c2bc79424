#include "ashlar/core/copy_bytes.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

void stream(void* to, const void* from, size_t bytes) {
  stream_bytes(to, from, bytes);
  finish_streaming();
}

TEST(CopyBytes, CopiesTheseBytesAndNoOthers) {
  std::vector<unsigned char> from(3000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(1 + i % 251);
  for (const auto copy : {copy_bytes, stream})
    for (size_t bytes = 0; bytes <= 2600; bytes += 1 + bytes / 300 * 7)
      for (const size_t first : {0, 1, 5, 16, 63}) {
        std::vector<unsigned char> to(from.size(), 0), expected = to;
        copy(to.data() + first, from.data() + 2 * first, bytes);
        for (size_t i = 0; i < bytes; ++i) expected[first + i] = from[2 * first + i];
        ASSERT_EQ(to, expected) << bytes << " bytes from " << 2 * first << " to " << first;
      }
}

}  // namespace
}  // namespace ashlar
