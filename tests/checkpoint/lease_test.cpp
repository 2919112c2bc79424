// Many processes that start on one root at once.
#include "ashlar/checkpoint/lease.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "ashlar/core/error.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::checkpoint {
namespace {

Log quiet_log() {
  return Log([](std::string_view) {});
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int which) { close(ends[which]); }
  void put(char byte) { EXPECT_EQ(write(ends[1], &byte, 1), 1); }
  char get() {
    char byte = '?';
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    return byte;
  }
  int ends[2];
};

// What a process says that wants the root: 'h' holds it, 'u' it is in use, '!' anything else.
char start_on(FileSystem& files, const std::string& root, std::optional<Lease>& lease) {
  static Log log = quiet_log();
  try {
    lease.emplace(files, root, log);
    return 'h';
  } catch (const Error& error) {
    const bool in_use = error.kind() == ErrorKind::kConfig &&
                        std::string(error.what()).find(" is in use: process ") != std::string::npos;
    if (!in_use) fprintf(stderr, "%s\n", error.what());
    return in_use ? 'u' : '!';
  }
}

// Starts so many processes on the root at once; all stay until every one has said how it went.
std::string race(const std::string& root, int num_processes, bool gives_back) {
  Pipe go, said, end;
  for (int i = 0; i < num_processes; ++i) {
    const pid_t child = fork();
    if (child != 0) continue;
    const auto files = posix_files();
    std::optional<Lease> lease;
    go.get();
    said.put(start_on(*files, root, lease));
    end.get();
    if (gives_back) lease.reset();
    _exit(0);
  }
  for (int i = 0; i < num_processes; ++i) go.put('g');
  std::string words;
  for (int i = 0; i < num_processes; ++i) words += said.get();
  for (int i = 0; i < num_processes; ++i) end.put('e');
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  std::sort(words.begin(), words.end());
  return words;
}

TEST(LeaseRace, OfManyStartersExactlyOneHoldsTheRoot) {
  const testing_support::TemporaryDirectory directory;
  // A round that does not give the root back leaves a dead lease to the next.
  for (int round = 0; round < 200; ++round)
    ASSERT_EQ(race(directory.path(), 5, round % 4 == 3), "huuuu") << "round " << round;
  ASSERT_EQ(race(directory.path(), 1, true), "h");
  EXPECT_TRUE(posix_files()->list(directory.path() / ".lease").empty());
}

// A starter that is killed at any moment of taking over a dead lease blocks nobody after it.
TEST(LeaseRace, AStarterKilledAtAnyCallLeavesTheRootToOneOther) {
  const testing_support::TemporaryDirectory directory;
  const std::string root = directory.path();
  bool survived = false;
  int crashes = 0;
  for (; !survived; ++crashes) {
    ASSERT_LT(crashes, 100);
    ASSERT_EQ(race(root, 1, false), "h");
    const pid_t child = fork();
    if (child == 0) {
      const auto posix = posix_files();
      const auto files =
          faulty_files(*posix, [&](int64_t call, std::string_view, const std::string&) {
            if (call == crashes) _exit(9);
            return Fault::kNone;
          });
      std::optional<Lease> lease;
      _exit(start_on(*files, root, lease) == 'h' ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_NE(WEXITSTATUS(status), 1);
    survived = WEXITSTATUS(status) == 0;
    ASSERT_EQ(race(root, 4, true), "huuu") << "killed at call " << crashes;
    EXPECT_LE(posix_files()->list(root + "/.lease").size(), 1u);
  }
  EXPECT_GT(crashes, 10);
}

}  // namespace
}  // namespace ashlar::checkpoint
