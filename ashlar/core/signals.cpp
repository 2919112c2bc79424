#include "ashlar/core/signals.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

// Copies of one signal, from terminal, launcher and shell, arrive closer together than this.
constexpr int64_t kPatience_ns = 1'000'000'000;

// A handler may use only such variables.  Signals may reach several threads at once.
std::atomic<int> caught{0};                                 // the first
std::array<std::atomic<int64_t>, kSignals.size()> came_ns;  // when each came first; 0: not yet
std::atomic<const char*> answer_text{nullptr};              // see StopSignals::answer
std::atomic<int64_t> answer_due_ns{0};                      // 0: unknown
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// A line for stderr, built with functions that a handler may call.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    for (const char c : text)
      if (size_ < text_.size()) text_[size_++] = c;
    return *this;
  }
  Line& operator<<(int64_t number) {
    std::array<char, 20> digits{};
    size_t first = digits.size();
    do digits[--first] = char('0' + number % 10);
    while ((number /= 10) > 0);
    return *this << std::string_view(&digits[first], digits.size() - first);
  }
  void print() const {
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 400> text_{};
  size_t size_ = 0;
};

std::string_view name_of(int number) {
  const char* name = sigabbrev_np(number);  // from a table: no lock, no memory
  return name ? name : "";
}

// Follows the ^C that a terminal shows.
Line line_of(int number) {
  Line line;
  line << (number == SIGINT ? "\nashlar: " : "ashlar: ") << name_of(number);
  return line;
}

void say_when(int number, int64_t now) {
  const char* text = answer_text;
  if (!text) return;
  Line line = line_of(number);
  line << ": " << text;
  if (const int64_t due = answer_due_ns; due != 0)
    line << ", in about " << (due > now ? (due - now + 999'999'999) / 1'000'000'000 : 1) << " s";
  line << "; again: without saving\n";
  line.print();
}

[[noreturn]] void give_up(int number) {
  if (answer_text.load()) {
    Line line = line_of(number);
    line << " again: ended without saving; the same command continues from the last checkpoint\n";
    line.print();
  }
  _exit(kUnsavedExitCode);
}

void on_signal(int number) {
  const int kept_errno = errno;
  const int64_t now = now_ns();
  int none = 0;
  if (caught.compare_exchange_strong(none, number)) say_when(number, now);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    int64_t first = 0;
    if (kSignals[i] == number && !came_ns[i].compare_exchange_strong(first, now) &&
        now - first >= kPatience_ns)
      give_up(number);
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
  for (std::atomic<int64_t>& came : came_ns) came = 0;
  answer(nullptr);
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

void StopSignals::answer(const char* when, double seconds) {
  answer_due_ns = 0;  // so that no text is paired with the time of another
  answer_text = when;
  if (seconds >= 0.0) answer_due_ns = now_ns() + int64_t(seconds * 1e9);
}

}  // namespace ashlar
