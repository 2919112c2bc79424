#include "ashlar/core/file_sample.h"

#include <gtest/gtest.h>

#include <set>

namespace ashlar {
namespace {

uint64_t hash_of(std::string_view content) {
  const auto files = memory_files();
  write_text(*files, "f", content);
  return sample_hash(*files->open("f"));
}

TEST(FileSample, ChangesWithSizeAndWithEitherEnd) {
  std::set<uint64_t> hashes;
  size_t num = 0;
  for (const size_t size : {0, 1, 4095, 4096, 4097, 262144, 262145, 1000003}) {
    const std::string content(size, 'a');
    hashes.insert(hash_of(content)), ++num;
    if (size == 0) continue;
    for (const size_t at : std::set<size_t>{0, size - 1}) {
      std::string other = content;
      other[at] = 'b';
      hashes.insert(hash_of(other)), ++num;
    }
    EXPECT_EQ(hash_of(content), hash_of(std::string(size, 'a')));
  }
  EXPECT_EQ(hashes.size(), num);
}

// A file of another text differs nearly everywhere; of a small one every byte is seen.
TEST(FileSample, SeesEveryByteOfASmallFileAndStretchesOfALargeOne) {
  const std::string small(200'000, 'a'), large(3'000'000, 'a');
  for (size_t at = 0; at < small.size(); at += 7001) {
    std::string other = small;
    other[at] = 'b';
    EXPECT_NE(hash_of(other), hash_of(small)) << at;
  }
  for (size_t at = 0; at + 50'000 < large.size(); at += 50'000) {
    std::string other = large;
    std::fill_n(other.begin() + long(at), 50'000, 'b');
    EXPECT_NE(hash_of(other), hash_of(large)) << at;
  }
}

}  // namespace
}  // namespace ashlar
