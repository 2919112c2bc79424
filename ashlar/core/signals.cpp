#include "ashlar/core/signals.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

// Copies of one Ctrl-C, from terminal and launcher, come closer together than this.
constexpr int64_t kPatience_ns = 1'000'000'000;

// A handler can reach nothing but such variables.  Signals may come to several threads at once.
std::atomic<int> caught{0};              // the first
std::atomic<int64_t> interrupted_ns{0};  // when the first SIGINT came; 0: none did
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Calls nothing that a handler may not.
void give_up() {
  constexpr std::string_view kText =
      "\nashlar: INT again: ended without saving; the same command continues from the last "
      "checkpoint\n";
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kText.data(), kText.size());
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);  // comes when the handler returns
}

void on_signal(int number) {
  const int kept_errno = errno;
  int none = 0;
  caught.compare_exchange_strong(none, number);
  if (number == SIGINT) {
    const int64_t now = now_ns();
    int64_t first = 0;
    if (!interrupted_ns.compare_exchange_strong(first, now) && now - first >= kPatience_ns)
      give_up();
  }
  errno = kept_errno;
}

void (*handler_of(int number))(int) {
  struct sigaction action = {};
  ASHLAR_ASSERT(sigaction(number, nullptr, &action) == 0);
  return action.sa_handler;
}

}  // namespace

StopSignals::StopSignals() {
  caught = 0;
  interrupted_ns = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) {
    if (number == SIGHUP && handler_of(number) == SIG_IGN) continue;
    ASHLAR_ASSERT(sigaction(number, &action, nullptr) == 0);
  }
}

StopSignals::~StopSignals() {
  for (const int number : kSignals)
    if (handler_of(number) == on_signal) signal(number, requested() ? SIG_IGN : SIG_DFL);
  caught = 0;
}

bool StopSignals::requested() {
  return caught != 0;
}

const char* StopSignals::name() {
  return caught == 0 ? "" : sigabbrev_np(caught);
}

}  // namespace ashlar
