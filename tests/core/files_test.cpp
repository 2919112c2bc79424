#include "ashlar/core/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <optional>

#include "tests/support/bytes.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

using testing_support::bytes_of;
using testing_support::message_of;

constexpr ErrorKind kStorage = ErrorKind::kStorage;

// Duties of every file system; `root_` is an empty directory of the one under test.
class FilesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "memory") {
      files_ = memory_files();
      root_ = "root";
      files_->make_directories(root_);
      return;
    }
    files_ = posix_files();
    directory_.emplace();
    root_ = directory_->path();
  }

  std::string at(std::string_view name) const { return join(root_, name); }
  void put(std::string_view name, std::string_view text) {
    const auto file = files_->create(at(name));
    file->write_at(bytes_of(text), 0);
    file->close();
  }
  std::string get(std::string_view name) { return read_text(*files_, at(name)); }

  std::unique_ptr<FileSystem> files_;
  std::optional<testing_support::TemporaryDirectory> directory_;
  std::string root_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, FilesTest, testing::Values("posix", "memory"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FilesTest, WritesAndReadsAnywhere) {
  const auto file = files_->create(at("a"));
  EXPECT_EQ(file->size(), 0);
  file->write_at(bytes_of("world"), 6);  // the gap is zeros
  EXPECT_EQ(file->size(), 11);
  file->write_at(bytes_of("hello"), 0);
  file->write_at({}, 500);
  file->sync();
  std::string text(11, '?');
  file->read_at(std::as_writable_bytes(std::span(text)), 0);
  EXPECT_EQ(text, std::string_view("hello\0world", 11));
  file->read_at(std::as_writable_bytes(std::span(text).first(3)), 8);
  EXPECT_EQ(text.substr(0, 3), "rld");
  file->truncate(4);
  EXPECT_EQ(file->size(), 4);
  file->truncate(6);
  file->close();
  EXPECT_EQ(get("a"), std::string_view("hell\0\0", 6));
}

TEST_P(FilesTest, ReadPastTheEndSaysHowMuchThereIs) {
  put("a", "12345");
  const auto file = files_->open(at("a"));
  std::string text(4, '?');
  const auto out = std::as_writable_bytes(std::span(text));
  EXPECT_EQ(message_of(kStorage, [&] { file->read_at(out, 2); }),
            "read " + at("a") + ": wanted 4 bytes at offset 2, but the file has 5 bytes");
  message_of(kStorage, [&] { file->read_at(out, 77); });
  EXPECT_NO_THROW(file->read_at({}, 77));
}

TEST_P(FilesTest, ReserveKeepsTheSize) {
  const auto file = files_->create(at("a"));
  file->write_at(bytes_of("xy"), 0);
  file->reserve(100000);
  file->reserve(0);
  EXPECT_EQ(file->size(), 2);
}

TEST_P(FilesTest, OpenedFilesAreReadOnlyAndClosedOnesUseless) {
  put("a", "123");
  const auto file = files_->open(at("a"));
  EXPECT_EQ(message_of(kStorage, [&] { file->write_at(bytes_of("x"), 0); }).substr(0, 6), "write ");
  file->close();
  EXPECT_NO_THROW(file->close());
  std::string text(1, '?');
  EXPECT_EQ(
      message_of(kStorage, [&] { file->read_at(std::as_writable_bytes(std::span(text)), 0); }),
      "read " + at("a") + ": Bad file descriptor" +
          (GetParam() == std::string_view("posix") ? " (after 0 of 1 bytes)" : ""));
  EXPECT_EQ(get("a"), "123");
}

TEST_P(FilesTest, CreateOpenAndAppendCheckWhatIsThere) {
  put("a", "123");
  files_->make_directories(at("d"));
  EXPECT_EQ(message_of(kStorage, [&] { files_->create(at("a")); }),
            "create " + at("a") + ": File exists");
  EXPECT_EQ(message_of(kStorage, [&] { files_->create(at("d")); }),
            "create " + at("d") + ": File exists");
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("b")); }),
            "open " + at("b") + ": No such file or directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("d")); }),
            "open " + at("d") + ": Is a directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->append(at("d")); }),
            "append " + at("d") + ": Is a directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->create(at("no/b")); }),
            "create " + at("no/b") + ": No such file or directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->create(at("a/b")); }),
            "create " + at("a/b") + ": Not a directory");
}

TEST_P(FilesTest, AppendsAtTheSize) {
  for (const char* text : {"one", "two"}) {
    const auto file = files_->append(at("log"));
    file->write_at(bytes_of(text), file->size());
    file->close();
  }
  EXPECT_EQ(get("log"), "onetwo");
  const auto file = files_->append(at("log"));  // offsets count, too
  file->write_at(bytes_of("ON"), 0);
  EXPECT_EQ(get("log"), "ONetwo");
}

TEST_P(FilesTest, MappingOutlivesTheFile) {
  put("a", "mapped");
  put("empty", "");
  const auto mapping = files_->map(at("a"));
  files_->remove(at("a"));
  ASSERT_EQ(mapping->bytes().size(), 6u);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(mapping->bytes().data()), 6), "mapped");
  EXPECT_TRUE(files_->map(at("empty"))->bytes().empty());
  EXPECT_EQ(message_of(kStorage, [&] { files_->map(at("a")); }),
            "map " + at("a") + ": No such file or directory");
}

TEST_P(FilesTest, StatTellsTypeSizeAndTime) {
  put("a", "12345");
  files_->make_directories(at("d"));
  const auto file = files_->stat(at("a"));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->type, FileInfo::Type::kFile);
  EXPECT_EQ(file->size_bytes, 5);
  EXPECT_NEAR(static_cast<double>(file->modified_s), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(files_->stat(at("d"))->type, FileInfo::Type::kDirectory);
  EXPECT_FALSE(files_->stat(at("b")));
  EXPECT_FALSE(files_->stat(at("a/b")));
  EXPECT_FALSE(files_->stat(at("no/b")));
}

TEST_P(FilesTest, ListsDirectChildrenSorted) {
  files_->make_directories(at("d/deep"));
  files_->make_directories(at("d.x"));  // '.' sorts before '/': no children of d
  for (const char* name : {"d/b", "d/a", "d/deep/c", "d.x/e"}) put(name, "");
  EXPECT_EQ(files_->list(at("d")), (std::vector<std::string>{"a", "b", "deep"}));
  EXPECT_EQ(files_->list(at("d/deep/")), (std::vector<std::string>{"c"}));
  EXPECT_EQ(files_->list(root_), (std::vector<std::string>{"d", "d.x"}));
  EXPECT_EQ(message_of(kStorage, [&] { files_->list(at("no")); }),
            "list " + at("no") + ": No such file or directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->list(at("d/a")); }),
            "list " + at("d/a") + ": Not a directory");
}

TEST_P(FilesTest, MakesDirectoriesWithParentsAndAgain) {
  files_->make_directories(at("x/y//z/"));
  files_->make_directories(at("x/y/z"));
  EXPECT_EQ(files_->stat(at("x/y/z"))->type, FileInfo::Type::kDirectory);
  put("x/file", "");
  EXPECT_EQ(message_of(kStorage, [&] { files_->make_directories(at("x/file")); }),
            "make_directories " + at("x/file") + ": File exists");
  EXPECT_EQ(message_of(kStorage, [&] { files_->make_directories(at("x/file/d")); }),
            "make_directories " + at("x/file/d") + ": Not a directory");
  files_->sync_directory(at("x"));
  message_of(kStorage, [&] { files_->sync_directory(at("no")); });
}

TEST_P(FilesTest, RenameNewNeverReplaces) {
  put("a", "A");
  put("b", "B");
  EXPECT_EQ(message_of(kStorage, [&] { files_->rename_new(at("a"), at("b")); }),
            "rename_new " + at("a") + ": File exists (to " + at("b") + ")");
  EXPECT_EQ(get("b"), "B");
  files_->rename_new(at("a"), at("c"));
  EXPECT_EQ(get("c"), "A");
  EXPECT_FALSE(files_->stat(at("a")));
  message_of(kStorage, [&] { files_->rename_new(at("a"), at("d")); });
  message_of(kStorage, [&] { files_->rename_new(at("b"), at("no/d")); });
}

TEST_P(FilesTest, RenamesDirectoriesWithTheirContent) {
  files_->make_directories(at("d/deep"));
  files_->make_directories(at("empty"));
  files_->make_directories(at("d2"));
  put("d/deep/a", "A");
  message_of(kStorage, [&] { files_->rename_new(at("d"), at("empty")); });
  message_of(kStorage, [&] { files_->rename_new(at("d"), at("d/deep/d")); });
  files_->rename_new(at("d"), at("e"));
  EXPECT_EQ(get("e/deep/a"), "A");
  EXPECT_EQ(files_->list(root_), (std::vector<std::string>{"d2", "e", "empty"}));
}

TEST_P(FilesTest, ReplacesFilesAndEmptyDirectoriesOnly) {
  put("a", "A");
  put("b", "B");
  files_->replace(at("a"), at("b"));
  EXPECT_EQ(get("b"), "A");
  EXPECT_FALSE(files_->stat(at("a")));
  files_->replace(at("b"), at("new"));
  files_->replace(at("new"), at("new"));
  EXPECT_EQ(get("new"), "A");
  files_->make_directories(at("d"));
  files_->make_directories(at("e"));
  put("e/x", "X");
  EXPECT_EQ(message_of(kStorage, [&] { files_->replace(at("new"), at("d")); }),
            "replace " + at("d") + ": Is a directory (by " + at("new") + ")");
  message_of(kStorage, [&] { files_->replace(at("d"), at("new")); });
  message_of(kStorage, [&] { files_->replace(at("d"), at("e")); });
  files_->replace(at("e"), at("d"));
  EXPECT_EQ(get("d/x"), "X");
}

TEST_P(FilesTest, RemovesFilesEmptyDirectoriesAndTrees) {
  files_->make_directories(at("d/deep"));
  files_->make_directories(at("d2"));
  put("d/deep/a", "A");
  EXPECT_EQ(message_of(kStorage, [&] { files_->remove(at("d")); }),
            "remove " + at("d") + ": Directory not empty");
  EXPECT_EQ(message_of(kStorage, [&] { files_->remove(at("no")); }),
            "remove " + at("no") + ": No such file or directory");
  files_->remove(at("d/deep/a"));
  files_->remove(at("d/deep"));
  EXPECT_TRUE(files_->list(at("d")).empty());
  put("d/b", "B");
  files_->remove_all(at("d"));
  files_->remove_all(at("d"));  // absent is fine
  EXPECT_EQ(files_->list(root_), (std::vector<std::string>{"d2"}));
}

TEST_P(FilesTest, OpenFilesSurviveRemovalAndRename) {
  put("a", "12345");
  put("b", "abc");
  const auto a = files_->open(at("a"));
  const auto b = files_->append(at("b"));
  files_->remove(at("a"));
  files_->rename_new(at("b"), at("c"));
  b->write_at(bytes_of("d"), 3);
  std::string text(5, '?');
  a->read_at(std::as_writable_bytes(std::span(text)), 0);
  EXPECT_EQ(text, "12345");
  EXPECT_EQ(get("c"), "abcd");
}

TEST_P(FilesTest, KnowsFreeSpace) {
  EXPECT_GT(files_->free_bytes(root_), 0);
  message_of(kStorage, [&] { files_->free_bytes(at("no")); });
}

TEST_P(FilesTest, WholeTexts) {
  write_text(*files_, at("a"), "first");
  write_text(*files_, at("a"), "second");
  write_text(*files_, at("empty"), "");
  EXPECT_EQ(get("a"), "second");
  EXPECT_EQ(get("empty"), "");
  EXPECT_EQ(files_->list(root_), (std::vector<std::string>{"a", "empty"}));
  EXPECT_EQ(read_text(*files_, at("a"), 6), "second");
  EXPECT_EQ(message_of(kStorage, [&] { read_text(*files_, at("a"), 5); }),
            "read " + at("a") + ": the file has 6 bytes; expected at most 5");
  message_of(kStorage, [&] { write_text(*files_, at("no/a"), "x"); });
}

// Features that only a real file system has.
class PosixFilesTest : public FilesTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, PosixFilesTest, testing::Values("posix"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PosixFilesTest, ReadingFollowsLinksToRegularFilesOnly) {
  put("a", "the file");
  files_->make_directories(at("d"));
  std::filesystem::create_symlink("a", at("link"));
  std::filesystem::create_symlink("link", at("link2"));
  std::filesystem::create_symlink("gone", at("dangling"));
  std::filesystem::create_symlink("d", at("to_d"));
  std::filesystem::create_symlink("loop", at("loop"));
  std::filesystem::create_symlink("/dev/null", at("device"));
  for (const char* name : {"link", "link2"}) {
    EXPECT_EQ(get(name), "the file");
    EXPECT_EQ(files_->map(at(name))->bytes().size(), 8u);
    EXPECT_EQ(files_->stat(at(name), LinkPolicy::kFollow)->type, FileInfo::Type::kFile);
    EXPECT_EQ(files_->stat(at(name), LinkPolicy::kFollow)->size_bytes, 8);
  }
  EXPECT_EQ(files_->stat(at("to_d"), LinkPolicy::kFollow)->type, FileInfo::Type::kDirectory);
  EXPECT_FALSE(files_->stat(at("dangling"), LinkPolicy::kFollow));
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("dangling")); }),
            "open " + at("dangling") + ": No such file or directory");
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("to_d")); }),
            "open " + at("to_d") + ": Is a directory");
  EXPECT_NE(message_of(kStorage, [&] { files_->open(at("loop")); }).find("a loop of links"),
            std::string::npos);
  EXPECT_FALSE(files_->stat(at("loop"), LinkPolicy::kFollow));
  EXPECT_FALSE(files_->stat(at("loop/file")));
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("device")); }),
            "open " + at("device") + ": not a regular file");
}

TEST_P(PosixFilesTest, RefusesLinksWhereAskedTo) {
  put("a", "A");
  files_->make_directories(at("d"));
  put("d/b", "B");
  std::filesystem::create_symlink("a", at("link"));
  std::filesystem::create_symlink("gone", at("dangling"));
  std::filesystem::create_symlink("d", at("to_d"));
  EXPECT_EQ(files_->stat(at("link"))->type, FileInfo::Type::kLink);
  EXPECT_EQ(files_->stat(at("dangling"))->type, FileInfo::Type::kLink);
  const auto inner = faulty_files(
      *files_, [](int64_t, std::string_view, const std::string&) { return Fault::kNone; });
  for (FileSystem* files : {files_.get(), inner.get()}) {
    EXPECT_NE(
        message_of(kStorage, [&] { files->open(at("link"), LinkPolicy::kRefuse); }).find("link"),
        std::string::npos);
    message_of(kStorage, [&] { files->map(at("link"), LinkPolicy::kRefuse); });
    message_of(kStorage, [&] { read_text(*files, at("link"), 10, LinkPolicy::kRefuse); });
    EXPECT_EQ(read_text(*files, at("a"), 10, LinkPolicy::kRefuse), "A");
    EXPECT_EQ(read_text(*files, at("to_d/b"), 10, LinkPolicy::kRefuse), "B");
    EXPECT_EQ(files->stat(at("link"), LinkPolicy::kFollow)->type, FileInfo::Type::kFile);
  }
  message_of(kStorage, [&] { files_->append(at("link")); });
  message_of(kStorage, [&] { files_->append(at("dangling")); });
  message_of(kStorage, [&] { files_->create(at("dangling")); });
  EXPECT_FALSE(files_->stat(at("gone")));
}

TEST_P(PosixFilesTest, RemoveAllLeavesWhatLinksPointTo) {
  files_->make_directories(at("d"));
  files_->make_directories(at("kept"));
  put("kept/a", "A");
  std::filesystem::create_directory_symlink(at("kept"), at("d/link"));
  files_->remove_all(at("d"));
  EXPECT_EQ(get("kept/a"), "A");
}

TEST_P(PosixFilesTest, RefusesPipesWithoutWaiting) {
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(files_->stat(at("pipe"))->type, FileInfo::Type::kOther);
  EXPECT_EQ(message_of(kStorage, [&] { files_->open(at("pipe")); }),
            "open " + at("pipe") + ": not a regular file");
}

TEST_P(PosixFilesTest, AFullDeviceSaysSo) {
  if (!files_->stat("/dev/shm")) GTEST_SKIP() << "needs /dev/shm, a small file system in memory";
  const int64_t too_much = files_->free_bytes("/dev/shm") + (int64_t{1} << 30);
  if (too_much > int64_t{1} << 40) GTEST_SKIP() << "needs a /dev/shm of limited size";
  const std::string path = "/dev/shm/ashlar_files_" + std::to_string(getpid());
  const auto file = files_->create(path);
  const std::string error = message_of(kStorage, [&] { file->reserve(too_much); });
  files_->remove(path);
  EXPECT_EQ(error, "reserve " + path + ": No space left on device (" + std::to_string(too_much) +
                       " bytes)");
}

TEST(MemoryFiles, SpellingsOfAPathAreOne) {
  const auto files = memory_files();
  files->make_directories("/data/x");
  write_text(*files, "/data//x/./a", "A");
  EXPECT_EQ(read_text(*files, "/data/x/a"), "A");
  write_text(*files, "./b", "B");
  EXPECT_EQ(read_text(*files, "b"), "B");
  EXPECT_EQ(files->list("."), (std::vector<std::string>{"b"}));
  EXPECT_EQ(files->list("/"), (std::vector<std::string>{"data"}));
  EXPECT_EQ(message_of(kStorage, [&] { files->remove_all("/"); }),
            "remove_all /: Device or resource busy");
}

TEST(Visibility, IsThatOfANetworkWhereTheFileSystemIsNotKnownAsLocal) {
  EXPECT_EQ(posix_files()->visibility_s("/proc"), kNetworkVisibility_s);
  // A path that does not exist is on the file system of the nearest directory above it.
  const double root = posix_files()->visibility_s("/");
  for (const char* path : {"/nowhere", "/nowhere/at/all", "/nowhere/../at/all/"})
    EXPECT_EQ(posix_files()->visibility_s(path), root) << path;
  EXPECT_EQ(posix_files()->visibility_s("/proc/nowhere/at/all"), kNetworkVisibility_s);
  EXPECT_EQ(posix_files()->visibility_s("nowhere/at/all"), posix_files()->visibility_s("."));
  EXPECT_EQ(posix_files(5)->visibility_s("/proc"), 5);
  EXPECT_EQ(posix_files(0)->visibility_s("/proc"), 0);
  EXPECT_EQ(memory_files()->visibility_s("x"), 0);
}

TEST(Paths, JoinAndParent) {
  EXPECT_EQ(join("a", "b"), "a/b");
  EXPECT_EQ(join("a/", "b"), "a/b");
  EXPECT_EQ(join("", "b"), "b");
  EXPECT_EQ(join("/", "b"), "/b");
  EXPECT_EQ(parent_of("a/b"), "a");
  EXPECT_EQ(parent_of("/a/b/"), "/a");
  EXPECT_EQ(parent_of("a//b"), "a");
  EXPECT_EQ(parent_of("/a"), "/");
  EXPECT_EQ(parent_of("//"), "/");
  EXPECT_EQ(parent_of("a"), ".");
  EXPECT_EQ(parent_of("a/"), ".");
  EXPECT_EQ(parent_of(""), ".");
}

}  // namespace
}  // namespace ashlar
