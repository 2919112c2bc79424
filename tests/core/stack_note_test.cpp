#include "ashlar/core/stack_note.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/core/process.h"
#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

// A thread that sleeps in the C library says so; one that computes is not in the kernel.
TEST(StackNote, NamesTheFunctionThatAThreadIsIn) {
  const testing_support::TemporaryDirectory root;
  const std::string directory = root.path();
  answer_stack_signals(directory);
  std::atomic<pid_t> number{0};
  std::thread sleeper([&] {
    number = gettid();
    const timespec day{86'400, 0};
    nanosleep(&day, nullptr);  // the signal ends it
  });
  while (number == 0 || stat_of_thread(getpid(), number)->state != 'S') std::this_thread::yield();
  const std::string text = ask_for_stack(getpid(), number, directory, 60);
  pthread_kill(sleeper.native_handle(), SIGUSR2);  // if that did not ask
  sleeper.join();
  EXPECT_NE(text.find("nanosleep"), text.npos) << text;
  EXPECT_NE(text.find("core_test+0x"), text.npos) << text;
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "the note is read";
  EXPECT_EQ(ask_for_stack(getpid(), number, directory, 60), "") << "the thread has ended";
  signal(SIGUSR2, SIG_DFL);
}

TEST(StackNote, AsksNobodyWhoWouldDieOfIt) {
  const testing_support::TemporaryDirectory root;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGUSR2, SIG_DFL);
    pause();
    _exit(0);
  }
  const auto begin = Clock::now();
  while (stat_of_process(child)->state != 'S' && seconds_since(begin) < 60)
    std::this_thread::yield();
  EXPECT_EQ(ask_for_stack(child, child, root.path(), 60), "");
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace ashlar
