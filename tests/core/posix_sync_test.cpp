// That the promises of a disk are asked for, and its refusals heard: fsync is counted, and made to
// fail, by a function of the same name in front of the system's.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "ashlar/core/files.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace {
int num_files = 0, num_directories = 0, answer = 0;  // answer: an errno
}

extern "C" int fsync(int descriptor) {
  struct stat status;
  if (::fstat(descriptor, &status) == 0) ++(S_ISDIR(status.st_mode) ? num_directories : num_files);
  if (answer == 0) return int(::syscall(SYS_fsync, descriptor));
  errno = answer;
  return -1;
}

namespace ashlar {
namespace {

using testing_support::message_of;

class PosixSync : public testing::Test {
 protected:
  void SetUp() override { num_files = num_directories = answer = 0; }
  void TearDown() override { answer = 0; }
  testing_support::TemporaryDirectory directory_;
  std::string path_ = directory_ / "a";
  std::unique_ptr<FileSystem> files_ = posix_files();
};

TEST_F(PosixSync, FilesAndDirectoriesReachTheDisk) {
  const auto file = files_->create(path_);
  file->sync();
  EXPECT_EQ(num_files, 1);
  files_->sync_directory(directory_.path());
  EXPECT_EQ(num_directories, 1);
  EXPECT_TRUE(files_->keeps_names(directory_.path()));
  EXPECT_EQ(num_directories, 2);
  for (const int number : {EIO, EINVAL}) {
    answer = number;
    message_of(ErrorKind::kStorage, [&] { file->sync(); });
  }
}

TEST_F(PosixSync, AFileSystemWithoutTheCallForDirectoriesIsKnown) {
  answer = EINVAL;
  files_->sync_directory(directory_.path());
  EXPECT_FALSE(files_->keeps_names(directory_.path()));
  answer = EIO;
  message_of(ErrorKind::kStorage, [&] { files_->sync_directory(directory_.path()); });
  message_of(ErrorKind::kStorage, [&] { files_->keeps_names(directory_.path()); });
}

TEST_F(PosixSync, SmallFilesAreDurableWithTheirNames) {
  write_text(*files_, path_, "text");
  EXPECT_EQ(num_files, 1);
  EXPECT_EQ(num_directories, 1);
}

}  // namespace
}  // namespace ashlar
