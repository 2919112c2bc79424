// That direct reads and writes pass by the system's memory, and that bytes they are not for, or a
// file system without them, take the other way: open, pread and pwrite are made to refuse O_DIRECT
// by functions of the same names in front of the system's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <vector>

#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/files.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace {

bool refuse_to_open = false, refuse_calls = false;
int direct_calls = 0;

bool refuses(int descriptor) {
  if (!(::fcntl(descriptor, F_GETFL) & O_DIRECT)) return false;
  ++direct_calls;
  if (refuse_calls) errno = EINVAL;
  return refuse_calls;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (!refuse_to_open || !(flags & O_DIRECT))
    return int(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  errno = EINVAL;
  return -1;
}

// The function that open becomes with checked calls (-D_FORTIFY_SOURCE) if no mode is given.
extern "C" int __open_2(const char* path, int flags) {
  return open(path, flags);
}

extern "C" ssize_t pread(int descriptor, void* memory, size_t count, off_t offset) {
  return refuses(descriptor) ? -1 : ::syscall(SYS_pread64, descriptor, memory, count, offset);
}

extern "C" ssize_t pwrite(int descriptor, const void* memory, size_t count, off_t offset) {
  return refuses(descriptor) ? -1 : ::syscall(SYS_pwrite64, descriptor, memory, count, offset);
}

namespace ashlar {
namespace {

constexpr int64_t kStep = File::kDirectBytes;

class PosixDirect : public testing::Test {
 protected:
  void SetUp() override {
    refuse_to_open = refuse_calls = false;
    direct_calls = 0;
    for (int64_t i = 0; i < kSize; ++i) written_[i] = std::byte(i * 7 + i / 251);
  }
  void TearDown() override { refuse_to_open = refuse_calls = false; }

  // Writes the bytes, begun at `skip` of memory and `offset` of the file, and reads them back.
  void write_and_read(int64_t skip, int64_t offset, int64_t count) {
    SCOPED_TRACE(fmt::format("{} bytes at {} from {}", count, offset, skip));
    const std::string path = directory_ / "a";
    const auto file = files_->create(path);
    file->write_direct({&written_[skip], size_t(count)}, offset);
    file->sync();
    EXPECT_EQ(file->size(), count == 0 ? 0 : offset + count);
    std::memset(read_.get(), 0, size_t(kSize));
    file->read_direct({&read_[skip], size_t(count)}, offset);
    EXPECT_EQ(std::memcmp(&read_[skip], &written_[skip], size_t(count)), 0);
    std::vector<std::byte> plain(static_cast<size_t>(count));
    file->read_at(plain, offset);
    EXPECT_TRUE(std::ranges::equal(plain, std::span(&written_[skip], size_t(count))));
    file->close();
    files_->remove(path);
  }

  // Number of the file's pages that the system has in memory.
  static int64_t pages_in_memory(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY);
    void* at = mmap(nullptr, size_t(kSize), PROT_READ, MAP_SHARED, descriptor, 0);
    std::vector<unsigned char> pages(size_t(kSize / getpagesize()) + 1);
    EXPECT_EQ(mincore(at, size_t(kSize), pages.data()), 0);
    munmap(at, size_t(kSize));
    ::close(descriptor);
    return std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
  }

  static constexpr int64_t kSize = 64 * kStep;
  testing_support::TemporaryDirectory directory_;
  std::unique_ptr<FileSystem> files_ = posix_files();
  AlignedMemory written_ = aligned_memory(kSize, "a test"), read_ = aligned_memory(kSize, "a test");
};

TEST_F(PosixDirect, AnyBytesComeBack) {
  for (const int64_t skip : {int64_t(0), int64_t(8), kStep})
    for (const int64_t offset : {int64_t(0), int64_t(100), 3 * kStep})
      for (const int64_t count :
           {int64_t(0), int64_t(1), kStep - 1, kStep, kStep + 1, 9 * kStep + 5})
        write_and_read(skip, offset, count);
  EXPECT_GT(direct_calls, 0);
}

TEST_F(PosixDirect, OnlyWhatIsLaidOutForItIsDirect) {
  write_and_read(8, 0, 4 * kStep);
  write_and_read(0, 8, 4 * kStep);
  write_and_read(0, 0, kStep - 1);
  EXPECT_EQ(direct_calls, 0);
  write_and_read(0, 0, kStep);
  EXPECT_EQ(direct_calls, 2);
}

TEST_F(PosixDirect, WithoutItTheBytesComeBackToo) {
  refuse_to_open = true;
  write_and_read(0, 0, 9 * kStep + 5);
  EXPECT_EQ(direct_calls, 0);
  refuse_to_open = false;
  refuse_calls = true;
  write_and_read(0, 0, 9 * kStep + 5);
  EXPECT_EQ(direct_calls, 2);
}

TEST_F(PosixDirect, TheEndOfTheFileIsToldLikeThatOfOtherReads) {
  const auto file = files_->create(directory_ / "a");
  file->write_at({written_.get(), size_t(kStep + 10)}, 0);
  const auto message = [&](auto read) {
    return testing_support::message_of(ErrorKind::kStorage, read);
  };
  const std::span<std::byte> out(read_.get(), size_t(4 * kStep));
  EXPECT_EQ(message([&] { file->read_direct(out, 0); }), message([&] { file->read_at(out, 0); }));
}

TEST_F(PosixDirect, TheSystemKeepsNoCopy) {
  struct statfs status;
  ASSERT_EQ(statfs(directory_.path().c_str(), &status), 0);
  if (status.f_type == TMPFS_MAGIC) GTEST_SKIP() << "needs a temporary directory on a disk";
  const std::string path = directory_ / "a";
  {
    const auto file = files_->create(path);
    file->reserve(kSize);
    file->write_direct({written_.get(), size_t(kSize)}, 0);
    file->sync();
  }
  if (direct_calls == 0) GTEST_SKIP() << "needs a file system that knows O_DIRECT";
  EXPECT_EQ(pages_in_memory(path), 0);
  files_->open(path)->read_direct({read_.get(), size_t(kSize)}, 0);
  EXPECT_EQ(pages_in_memory(path), 0);
  files_->open(path)->read_at({read_.get(), size_t(kSize)}, 0);
  EXPECT_EQ(pages_in_memory(path), kSize / getpagesize());
}

}  // namespace
}  // namespace ashlar
