#include "ashlar/data/prefetch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/data/support.h"

namespace ashlar::data {
namespace {

Loader small_loader(FileSystem& files, int64_t vocab_size = kTestVocab) {
  if (!files.stat("x.idx")) write_counting(files, "x", std::vector<int64_t>(50, 20));
  LoaderOptions options;
  options.micro_batch = 2;
  options.global_batch = 4;
  options.vocab_size = vocab_size;
  return Loader({source_of(files, "x", 16)}, options);
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.ids_BT, b.ids_BT);
  EXPECT_EQ(a.targets_BT, b.targets_BT);
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.samples_B, b.samples_B);
  EXPECT_EQ(a.state, b.state);
}

TEST(Prefetcher, GivesTheLoadersBatches) {
  const auto files = memory_files();
  for (const int depth : {2, 3, 5}) {
    Loader loader = small_loader(*files);
    Prefetcher prefetcher(small_loader(*files), depth);
    Batch expected, batch;
    for (int i = 0; i < 100; ++i) {
      loader.next(expected);
      prefetcher.next(batch);
      expect_equal(batch, expected);
    }
    EXPECT_GE(prefetcher.stall_s(), 0);
    EXPECT_EQ(prefetcher.batches_per_step(), 2);
  }
}

TEST(Prefetcher, ResumesFromTheLastBatchTaken) {
  const auto files = memory_files();
  Loader straight = small_loader(*files);
  Batch expected, batch;
  Prefetcher first(small_loader(*files), 4);
  for (int i = 0; i < 7; ++i) {
    first.next(batch);
    straight.next(expected);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // more are loaded by now
  Loader resumed = small_loader(*files);
  resumed.restore(batch.state);
  Prefetcher second(std::move(resumed), 2);
  for (int i = 0; i < 9; ++i) {
    second.next(batch);
    straight.next(expected);
    expect_equal(batch, expected);
  }
}

TEST(Prefetcher, ErrorsComeAfterTheGoodBatchesAndStay) {
  const auto files = memory_files();
  constexpr int64_t kVocab = 900;  // the last ids are beyond it
  Loader loader = small_loader(*files, kVocab);
  Batch batch;
  int good = 0;
  try {
    for (;; ++good) loader.next(batch);
  } catch (const Error&) {
  }
  Prefetcher prefetcher(small_loader(*files, kVocab), 3);
  for (int i = 0; i < good; ++i) prefetcher.next(batch);
  for (int again = 0; again < 3; ++again)
    EXPECT_NE(message_of(ErrorKind::kData, [&] { prefetcher.next(batch); }).find("x.bin: token"),
              std::string::npos);
}

TEST(Prefetcher, StopsWhereverItIs) {
  const auto files = memory_files();
  for (int taken = 0; taken < 20; ++taken) {
    Loader loader = small_loader(*files);
    Prefetcher prefetcher(small_loader(*files), 2);
    Batch expected, batch;
    for (int i = 0; i < taken % 4; ++i) {
      loader.next(expected);
      prefetcher.next(batch);
      expect_equal(batch, expected);
    }
  }
}

}  // namespace
}  // namespace ashlar::data
