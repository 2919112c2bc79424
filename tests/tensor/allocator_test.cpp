#include "ashlar/tensor/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

const MemoryCount& of(const MemoryCounts& counts, Tag tag) {
  return counts.tags[size_t(tag)];
}

TEST(Allocator, GivesZeroedAlignedBytes) {
  Allocator allocator(Device::kCpu);
  for (int round = 0; round < 3; ++round) {
    const Buffer buffer = allocator.allocate(1000, Tag::kWeights);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    ASSERT_GE(buffer.size_bytes(), 1000);
    const std::span<std::byte> bytes(buffer.data(), size_t(buffer.size_bytes()));
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::fill(bytes.begin(), bytes.end(), std::byte{255});  // the next round must not see this
  }
}

TEST(Allocator, CountsCurrentAndPeakByTag) {
  Allocator allocator(Device::kCpu);
  Buffer weights = allocator.allocate(1024, Tag::kWeights);
  {
    const Buffer a = allocator.allocate(640, Tag::kWorkspace);
    const Buffer b = allocator.allocate(65, Tag::kWorkspace);  // takes 128
    EXPECT_EQ(of(allocator.counts(), Tag::kWorkspace).current_bytes, 768);
  }
  const Buffer c = allocator.allocate(64, Tag::kWorkspace);
  const MemoryCounts counts = allocator.counts();
  EXPECT_EQ(of(counts, Tag::kWeights).current_bytes, 1024);
  EXPECT_EQ(of(counts, Tag::kWorkspace).current_bytes, 64);
  EXPECT_EQ(of(counts, Tag::kWorkspace).peak_bytes, 768);
  EXPECT_EQ(counts.total.current_bytes, 1088);
  EXPECT_EQ(counts.total.peak_bytes, 1792);
  EXPECT_EQ(counts.num_allocations, 4);
  EXPECT_EQ(of(counts, Tag::kGradients).peak_bytes, 0);
}

TEST(Allocator, CountsOnMetaInTheAlignmentOfTheMemoryThatIsPlannedFor) {
  Allocator meta(Device::kMeta, INT64_MAX, kGpuAlign);
  const Buffer a = meta.allocate(65, Tag::kWeights), b = meta.allocate(256, Tag::kWeights);
  EXPECT_EQ(of(meta.counts(), Tag::kWeights).current_bytes, 512);
  EXPECT_EQ(a.data(), nullptr);
}

TEST(Allocator, BuffersMove) {
  Allocator allocator(Device::kCpu);
  Buffer a = allocator.allocate(64, Tag::kWeights);
  const std::byte* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: a moved-from buffer is empty
  EXPECT_EQ(a.size_bytes(), 0);
  Buffer c = allocator.allocate(128, Tag::kGradients);
  c = std::move(b);  // gives its own bytes back
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(allocator.counts().total.current_bytes, 64);
  EXPECT_EQ(of(allocator.counts(), Tag::kGradients).current_bytes, 0);
  Buffer& same = c;
  c = std::move(same);
  EXPECT_EQ(c.data(), data);
  c = Buffer();
  EXPECT_EQ(allocator.counts().total.current_bytes, 0);
}

TEST(Allocator, LimitErrorIsTheTableByTag) {
  Allocator allocator(Device::kCpu, 4096);
  const Buffer weights = allocator.allocate(3072, Tag::kWeights);
  { const Buffer exactly = allocator.allocate(1024, Tag::kSaved); }
  try {
    allocator.allocate(1025, Tag::kWorkspace);
    FAIL() << "the limit was passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMemory);
    const std::string text = error.what();
    EXPECT_TRUE(
        text.starts_with("the memory limit of 4.00 KiB leaves no room for 1.00 KiB of workspace\n"))
        << text;
    EXPECT_TRUE(text.ends_with(allocator.table()));
    EXPECT_NE(text.find("weights                 3,072              3,072\n"), std::string::npos)
        << text;
    EXPECT_NE(text.find("saved                       0              1,024\n"), std::string::npos)
        << text;
    EXPECT_NE(text.find("total                   3,072              4,096"), std::string::npos)
        << text;
  }
  // A failed allocation is not counted.
  EXPECT_EQ(allocator.counts().total.current_bytes, 3072);
  EXPECT_EQ(of(allocator.counts(), Tag::kWorkspace).peak_bytes, 0);
  EXPECT_EQ(allocator.counts().num_allocations, 2);
}

TEST(Allocator, MetaCountsTheSameWithoutBytes) {
  Allocator cpu(Device::kCpu), meta(Device::kMeta);
  const auto run = [](Allocator& allocator) {
    std::vector<Buffer> buffers;
    for (const int64_t size : {0, 1, 64, 1000})
      buffers.push_back(allocator.allocate(size, Tag::kOptimizer));
    if (allocator.device() == Device::kMeta) {
      for (const Buffer& buffer : buffers) EXPECT_EQ(buffer.data(), nullptr);
    }
    return allocator.counts();
  };
  const MemoryCounts a = run(cpu), b = run(meta);
  EXPECT_EQ(a.total.peak_bytes, b.total.peak_bytes);
  EXPECT_EQ(a.total.peak_bytes, 64 + 64 + 1024);
  EXPECT_EQ(a.num_allocations, b.num_allocations);
  EXPECT_EQ(meta.counts().total.current_bytes, 0);
  // More than any machine has.
  const Buffer huge = meta.allocate(int64_t{1} << 60, Tag::kWeights);
  EXPECT_EQ(huge.size_bytes(), int64_t{1} << 60);
}

TEST(Allocator, CountsFromManyThreads) {
  Allocator allocator(Device::kCpu);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) allocator.allocate(64, Tag::kInput);
    });
  for (std::thread& thread : threads) thread.join();
  const MemoryCounts counts = allocator.counts();
  EXPECT_EQ(counts.total.current_bytes, 0);
  EXPECT_EQ(counts.num_allocations, 2000);
  EXPECT_GE(counts.total.peak_bytes, 64);
  EXPECT_LE(counts.total.peak_bytes, 256);
}

TEST(AllocatorDeathTest, EveryBufferMustComeBack) {
  EXPECT_DEATH(
      {
        auto allocator = std::make_unique<Allocator>(Device::kCpu);
        const Buffer late = allocator->allocate(1, Tag::kWeights);
        allocator.reset();
      },
      "current_bytes == 0");
}

}  // namespace
}  // namespace ashlar
