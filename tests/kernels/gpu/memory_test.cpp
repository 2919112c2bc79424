// The memory of a GPU and the way to it and back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/side_copies.h"
#include "ashlar/tensor/host_bytes.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels::gpu {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<std::byte> bytes_at(Reservation& memory, const std::byte* data, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  memory.copy_to_host(bytes.data(), data, count);
  return bytes;
}

TEST(Reservation, GivesZeroedAlignedBytesUntilItIsFull) {
  Reservation memory(2 * kMiB);
  std::vector<std::byte*> taken;
  while (std::byte* data = memory.take(kMiB / 2)) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kGpuAlign, 0u);
    const auto bytes = bytes_at(memory, data, kMiB / 2);
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
    const std::vector<std::byte> ones(size_t(kMiB / 2), std::byte{1});
    memory.copy_from_host(data, ones.data(), kMiB / 2);
    taken.push_back(data);
  }
  ASSERT_EQ(taken.size(), 4u);
  // Neighbours join, whichever is given back first.
  memory.give(taken[1], kMiB / 2);
  EXPECT_EQ(memory.take(kMiB), nullptr);
  memory.give(taken[3], kMiB / 2);
  memory.give(taken[2], kMiB / 2);
  std::byte* joined = memory.take(3 * kMiB / 2);
  EXPECT_EQ(joined, taken[1]);
  EXPECT_EQ(bytes_at(memory, joined, 1)[0], std::byte{0});  // again
  memory.give(joined, 3 * kMiB / 2);
  memory.give(taken[0], kMiB / 2);
  EXPECT_EQ(memory.take(2 * kMiB), taken[0]);
  memory.give(taken[0], 2 * kMiB);
}

TEST(Reservation, IsTheMemoryOfAnAllocatorAndItsTensors) {
  Reservation memory(kMiB);
  Allocator allocator(memory);
  Arena arena(allocator, 4096, Tag::kSaved);
  EXPECT_EQ(allocator.counts().tags[size_t(Tag::kSaved)].current_bytes, 4096);
  const Tensor tensor = arena.take(DType::kF32, {4, 8}).slice(1, 3);
  EXPECT_EQ(tensor.device, Device::kGpu);
  EXPECT_DEATH(tensor.as<float>(), "kCpu");
  std::vector<float> values(16), back(16);
  std::iota(values.begin(), values.end(), 1.0f);
  copy_from_host(tensor, 0, std::as_bytes(std::span(values)));
  copy_to_host(tensor, 0, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, values);
  float one = 0;
  copy_to_host(tensor, 5 * int64_t(sizeof(float)), std::as_writable_bytes(std::span(&one, 1)));
  EXPECT_EQ(one, 6.0f);
}

class Streams : public testing::Test {
 protected:
  std::vector<int64_t> download(const std::byte* from, int64_t count) {
    std::vector<int64_t> values(static_cast<size_t>(count));
    const Stream::Download list[] = {{values.data(), from, count * int64_t(sizeof(int64_t))}};
    stream_.download(list);
    return values;
  }
  PinnedMemory pinned_memory_;
  Allocator pinned_{pinned_memory_};
  Stream stream_{pinned_};
  Reservation memory_{4 * kMiB};
};

TEST_F(Streams, TakeListsThatChangeAtOnceAndWaitForDownloadsAlone) {
  constexpr int64_t kNumbers = 1000, kBytes = kNumbers * int64_t(sizeof(int64_t));
  std::byte* const data = memory_.take(64 * kGpuAlign);
  std::vector<int64_t> list(kNumbers);
  for (int64_t round = 0; round < 5; ++round) {
    std::iota(list.begin(), list.end(), round);
    stream_.upload(data, list.data(), kBytes);
    std::fill(list.begin(), list.end(), -1);
  }
  EXPECT_EQ(stream_.num_waits(), 0);
  std::iota(list.begin(), list.end(), 4);
  EXPECT_EQ(download(data, kNumbers), list);
  EXPECT_EQ(stream_.num_waits(), 1);
  memory_.give(data, 64 * kGpuAlign);
}

// Where pinned memory has been used up, nothing in it is written before the device was waited for.
TEST_F(Streams, WaitWhereTheirRoomIsUsedUp) {
  constexpr int64_t kNumbers = 4 * kMiB / int64_t(sizeof(int64_t)), kRounds = 40;
  std::byte* const data = memory_.take(4 * kMiB);
  std::vector<int64_t> list(kNumbers);
  for (int64_t round = 0; round < kRounds; ++round) {
    std::fill(list.begin(), list.end(), round);
    stream_.upload(data, list.data(), 4 * kMiB);
    EXPECT_EQ(stream_.num_waits(), round * 4 * kMiB / Stream::kRoomBytes);
  }
  EXPECT_EQ(download(data, kNumbers), list);
  memory_.give(data, 4 * kMiB);
}

TEST_F(Streams, BringSeveralListsBackInOneWait) {
  std::byte* const data = memory_.take(2 * kGpuAlign);
  const std::vector<double> numbers = {1.5, -2.5};
  const std::vector<int64_t> counts = {3, 4, 5};
  stream_.upload(data, numbers.data(), 16);
  stream_.upload(data + kGpuAlign, counts.data(), 24);
  std::vector<double> numbers_here(2);
  std::vector<int64_t> counts_here(3);
  const Stream::Download list[] = {{numbers_here.data(), data, 16},
                                   {counts_here.data(), data + kGpuAlign, 24}};
  stream_.download(list);
  EXPECT_EQ(numbers_here, numbers);
  EXPECT_EQ(counts_here, counts);
  EXPECT_EQ(stream_.num_waits(), 1);
  memory_.give(data, 2 * kGpuAlign);
}

class OrderedCopies : public testing::Test {
 protected:
  static constexpr int64_t kNumbers = 1000, kBytes = kNumbers * int64_t(sizeof(int64_t));
  ~OrderedCopies() override { memory_.give(data_, 64 * kGpuAlign); }
  void fill(int64_t number) {
    ASSERT_EQ(device::launch(device::Fill{.to = data_,
                                          .rows = 1,
                                          .row_bytes = kBytes,
                                          .stride_bytes = kBytes,
                                          .pattern = uint64_t(number),
                                          .unit_bytes = 8}),
              "");
  }
  // All numbers of a slot, once they are there.
  std::vector<int64_t> slot(int64_t number) const {
    while (!copies_.is_done(number)) std::this_thread::yield();
    std::vector<int64_t> numbers(kNumbers);
    std::memcpy(numbers.data(), copies_.slot(number), size_t(kBytes));
    return numbers;
  }
  void copy(int64_t number) {
    copies_.queue(number, 0, data_, kBytes / 4);
    copies_.queue(number, kBytes / 4, data_ + kBytes / 4, kBytes - kBytes / 4);
    copies_.mark(number);
  }

  PinnedMemory pinned_memory_;
  Allocator pinned_{pinned_memory_};
  Reservation memory_{4 * kMiB};
  std::byte* const data_ = memory_.take(64 * kGpuAlign);
  SideCopies copies_{pinned_, 2, kBytes};
};

TEST_F(OrderedCopies, SeeTheWorkBeforeThemAndNotTheWorkThatWaits) {
  EXPECT_EQ(pinned_.counts().total.current_bytes, 2 * kBytes);
  for (int64_t round = 0; round < 20; ++round) {
    fill(round);
    copies_.follow_work();
    copy(round % 2);
    copies_.hold_work();
    fill(-1);
    EXPECT_EQ(slot(round % 2), std::vector<int64_t>(kNumbers, round));
  }
}

TEST(SideCopies, HasAsManySlotsAsTheBytesNeedUpToALimit) {
  EXPECT_EQ(SideCopies::num_slots_for(1), 1);
  EXPECT_EQ(SideCopies::num_slots_for(SideCopies::kSlotBytes), 1);
  EXPECT_EQ(SideCopies::num_slots_for(SideCopies::kSlotBytes + 1), 2);
  EXPECT_EQ(SideCopies::num_slots_for(int64_t{1} << 40), SideCopies::kMostSlots);
}

TEST(FoundGpu, IsTheChipThatTheEmulatorStandsFor) {
  const DeviceSpec spec = find_gpu();
  EXPECT_EQ(spec.lanes, device::warp_size());
  EXPECT_GT(spec.memory_bytes, 0);
  EXPECT_GT(spec.bf16_flops, 0);
}

}  // namespace
}  // namespace ashlar::kernels::gpu
