#include <gtest/gtest.h>

#include "ashlar/core/files.h"
#include "tests/support/bytes.h"
#include "tests/support/errors.h"

namespace ashlar {
namespace {

using testing_support::bytes_of;
using testing_support::error_of;
using testing_support::message_of;

FaultDecision fault_at(int64_t number, Fault fault) {
  return [=](int64_t call, std::string_view, const std::string&) {
    return call == number ? fault : Fault::kNone;
  };
}

TEST(FaultyFiles, ReportsEveryCallInOrder) {
  const auto memory = memory_files();
  std::vector<std::string> calls;
  const auto files =
      faulty_files(*memory, [&](int64_t call, std::string_view name, const std::string& path) {
        EXPECT_EQ(call, static_cast<int64_t>(calls.size()));
        calls.push_back(std::string(name) + " " + path);
        return Fault::kNone;
      });
  files->make_directories("d");
  const auto file = files->create("d/a");
  file->reserve(4);
  file->write_at(bytes_of("12"), 0);
  file->truncate(1);
  file->size();
  file->sync();
  file->close();
  std::byte one;
  files->open("d/a")->read_at({&one, 1}, 0);
  files->append("d/a");
  files->map("d/a");
  files->stat("d/a");
  files->rename_new("d/a", "d/b");
  files->replace("d/b", "d/c");
  files->list("d");
  files->sync_directory("d");
  files->free_bytes("d");
  files->remove("d/c");
  files->remove_all("d");
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "make_directories d", "create d/a",     "reserve d/a", "write d/a",
                       "truncate d/a",       "size d/a",       "sync d/a",    "close d/a",
                       "open d/a",           "read d/a",       "append d/a",  "map d/a",
                       "stat d/a",           "rename_new d/a", "replace d/c", "list d",
                       "sync_directory d",   "free_bytes d",   "remove d/c",  "remove_all d"}));
}

TEST(FaultyFiles, IoErrorHitsOneCall) {
  const auto memory = memory_files();
  const auto files = faulty_files(*memory, fault_at(1, Fault::kIoError));
  const auto file = files->create("a");
  EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { file->write_at(bytes_of("12"), 0); }),
            "write a: Input/output error");
  EXPECT_EQ(file->size(), 0);
  file->write_at(bytes_of("12"), 0);
  EXPECT_EQ(read_text(*memory, "a"), "12");
}

TEST(FaultyFiles, DiskFullWritesNothing) {
  const auto memory = memory_files();
  const auto files = faulty_files(*memory, fault_at(1, Fault::kDiskFull));
  const auto file = files->create("a");
  EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { file->write_at(bytes_of("12"), 0); }),
            "write a: No space left on device");
  EXPECT_EQ(read_text(*memory, "a"), "");
}

TEST(FaultyFiles, ShortWriteLeavesHalf) {
  const auto memory = memory_files();
  const auto files = faulty_files(*memory, fault_at(1, Fault::kShortWrite));
  const auto file = files->create("a");
  EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { file->write_at(bytes_of("12345"), 0); }),
            "write a: No space left on device (after 2 of 5 bytes)");
  EXPECT_EQ(read_text(*memory, "a"), "12");
  const auto others = faulty_files(*memory, fault_at(0, Fault::kShortWrite));
  EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { others->remove("a"); }),
            "remove a: Input/output error");
}

TEST(FaultyFiles, CrashIsForAllLaterCalls) {
  const auto memory = memory_files();
  auto files = faulty_files(*memory, fault_at(2, Fault::kCrash));
  const auto file = files->create("a");
  file->write_at(bytes_of("12"), 0);
  EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { file->sync(); }),
            "sync a: Input/output error (crashed)");
  message_of(ErrorKind::kStorage, [&] { file->write_at(bytes_of("34"), 0); });
  message_of(ErrorKind::kStorage, [&] { files->remove("a"); });
  files.reset();
  message_of(ErrorKind::kStorage, [&] { file->close(); });  // a file outlives its file system
  EXPECT_EQ(read_text(*memory, "a"), "12");
}

// The promise of write_text, for every fault at every call: the old or the new text, and after an
// error that leaves the file system usable no temporary file.
TEST(FaultyFiles, WriteTextIsAllOrNothing) {
  for (const Fault fault : {Fault::kIoError, Fault::kDiskFull, Fault::kShortWrite, Fault::kCrash}) {
    for (int64_t number = 0;; ++number) {
      const auto memory = memory_files();
      write_text(*memory, "a", "the old text");
      const auto files = faulty_files(*memory, fault_at(number, fault));
      const std::string error =
          error_of(ErrorKind::kStorage, [&] { write_text(*files, "a", "the new text"); });
      const std::string text = read_text(*memory, "a");
      if (error.empty()) {
        EXPECT_EQ(text, "the new text");
        EXPECT_GE(number, 6);  // create, write, sync, close, replace and sync_directory could fail
        break;
      }
      EXPECT_TRUE(text == "the old text" || text == "the new text") << text;
      if (fault == Fault::kCrash) write_text(*memory, "a", "after the restart");
      EXPECT_EQ(memory->list("."), (std::vector<std::string>{"a"})) << error;
    }
  }
}

}  // namespace
}  // namespace ashlar
