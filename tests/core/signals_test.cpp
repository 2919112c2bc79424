// Effects of stop signals on a process: one is answered and noted, copies of it change nothing, the
// same again a second later ends the process.  Each case is a process of its own.
#include "ashlar/core/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace ashlar {
namespace {

struct Ended {
  int code = -1;  // -1: by a signal
  std::string err;
};

// body() in a child, which ends with its result.
Ended in_child(const std::function<int()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    _exit(body());
  }
  close(ends[1]);
  Ended ended;
  char bytes[256];
  for (ssize_t n = 0; (n = read(ends[0], bytes, sizeof bytes)) > 0;)
    ended.err.append(bytes, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

void pause_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(StopSignals, TheFirstIsAnsweredAtOnceAndCopiesAreNot) {
  const Ended ended = in_child([] {
    const StopSignals signals;
    if (StopSignals::requested()) return 1;
    StopSignals::answer("saves and stops after this step", 40.0);
    for (int i = 0; i < 5; ++i) raise(SIGTERM);
    raise(SIGUSR1);
    return StopSignals::requested() && StopSignals::name() == std::string("TERM") ? 0 : 2;
  });
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.err,
            "ashlar: TERM: saves and stops after this step, in about 40 s; again: without "
            "saving\n");
}

TEST(StopSignals, TheAnswerNeedsNoTimeAndMayBeLeftToAnotherProcess) {
  EXPECT_EQ(in_child([] {
              const StopSignals signals;
              StopSignals::answer("stops", 1.0);
              StopSignals::answer("stops before the first step");
              raise(SIGINT);
              return 0;
            }).err,
            "\nashlar: INT: stops before the first step; again: without saving\n");
  EXPECT_EQ(in_child([] {
              const StopSignals signals;
              StopSignals::answer("is late", 0.0);
              pause_ms(20);
              raise(SIGUSR1);
              return 0;
            }).err,
            "ashlar: USR1: is late, in about 1 s; again: without saving\n");
  const Ended silent = in_child([] {
    signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
    const StopSignals signals;
    raise(SIGHUP);
    return StopSignals::requested() ? 0 : 1;
  });
  EXPECT_EQ(silent.code, 0);
  EXPECT_EQ(silent.err, "");
}

TEST(StopSignals, TheSameAgainASecondLaterEndsTheProcess) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    const Ended ended = in_child([&] {
      const StopSignals signals;
      StopSignals::answer("stops");
      raise(number);
      pause_ms(1050);
      raise(number == SIGTERM ? SIGUSR1 : SIGTERM);  // another one is no repetition
      raise(number);
      return 0;
    });
    EXPECT_EQ(ended.code, kUnsavedExitCode) << number;
    EXPECT_NE(ended.err.find(" again: ended without saving; the same command continues from the "
                             "last checkpoint\n"),
              std::string::npos)
        << ended.err;
  }
  const Ended silent = in_child([] {
    const StopSignals signals;
    raise(SIGTERM);
    pause_ms(1050);
    raise(SIGTERM);
    return 0;
  });
  EXPECT_EQ(silent.code, kUnsavedExitCode);
  EXPECT_EQ(silent.err, "");
}

}  // namespace
}  // namespace ashlar
