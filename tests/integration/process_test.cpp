// What the process was started with: closed standard streams, limits of the system, signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

// Text for the console must reach no file of the run, whichever descriptors are free at the start.
TEST(Process, ClosedStandardStreamsLeaveFilesWhole) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::vector<int>> cases{{2}, {1, 2}, {0, 1, 2}, {0, 2}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = "run" + std::to_string(i);
    const Result result = run(scratch, train_args({"train.run_dir=" + name}), [&] {
      for (const int number : cases[i]) close(number);
    });
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out + result.err, "");
    EXPECT_EQ(read_steps(scratch / name).size(), 30u);  // complains of lines that are no JSON
    run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, 30).string()});
  }
}

TEST(Process, AResultThatCannotBePrintedIsAnError) {
  const Scratch scratch;
  const std::vector<std::vector<std::string>> commands{
      {"info"}, {"--version"}, {"generate", "--model", kData + "/hf_small", "--ids", "1,2"}};
  for (const auto& args : commands) {
    SCOPED_TRACE(args[0]);
    const Result full = run(scratch, args, [] {
      if (freopen("/dev/full", "w", stdout) == nullptr) _exit(126);
    });
    EXPECT_EQ(full.code, 25) << full.err;
    EXPECT_NE(full.err.find("stdout: No space left on device"), std::string::npos) << full.err;
    const Result closed = run(scratch, args, [] { close(STDOUT_FILENO); });
    EXPECT_EQ(closed.code, 25) << closed.err;
    EXPECT_NE(closed.err.find("stdout: Bad file descriptor"), std::string::npos) << closed.err;
  }
}

}  // namespace
}  // namespace ashlar::integration
