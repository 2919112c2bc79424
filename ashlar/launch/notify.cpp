#include "ashlar/launch/notify.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

constexpr std::array kNotifySignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
constexpr int kCannotStart = 127;               // exit code, as a shell's
constexpr int kNotStarted = kCannotStart << 8;  // the same as a status

[[noreturn]] void become_program(const std::vector<char*>& words, int input) {
  for (const int number : kNotifySignals) signal(number, SIG_DFL);
  if (dup2(input, STDIN_FILENO) >= 0) execvp(words[0], words.data());
  _exit(kCannotStart);
}

// Starts the program once, ends it after the time, and returns its status as waitpid has it.  The
// pipe has room for a line, so that a program that reads nothing holds up nobody.
int run_program(const std::vector<char*>& words, std::string_view line, double patience_s) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return kNotStarted;
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const pid_t program = fork();
  if (program == 0) {
    setpgid(0, 0);
    become_program(words, ends[0]);
  }
  close(ends[0]);
  [[maybe_unused]] const ssize_t ignored = write(ends[1], line.data(), line.size());
  close(ends[1]);
  if (program < 0) return kNotStarted;
  setpgid(program, program);  // whichever of the two is first
  const int ended = int(syscall(SYS_pidfd_open, program, 0));
  pollfd watched{ended, POLLIN, 0};
  if (ended < 0 || poll(&watched, 1, int(patience_s * 1000)) != 1) kill(-program, SIGKILL);
  close(ended);
  int status = 0;
  waitpid(program, &status, 0);
  return status;
}

// The process that starts programs lives until the launcher closes the socket, or is gone.  It has
// no file of the launcher, whose lock it would keep.
[[noreturn]] void notify_until_closed(const std::vector<std::string>& words, int socket,
                                      double patience_s) {
  constexpr int kLines = 3;
  setsid();  // a terminal's Ctrl-C does not reach it
  for (const int number : kNotifySignals) signal(number, SIG_IGN);
  const int nowhere = open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) dup2(nowhere, standard);
  if (socket != kLines) dup2(socket, kLines);
  close_range(kLines + 1, ~0u, 0);
  fcntl(kLines, F_SETFD, FD_CLOEXEC);
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  std::string line(Notifier::kMostBytes, '\0');
  for (bool reported = false;;) {
    const ssize_t count = recv(kLines, line.data(), line.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0);
    const int status =
        run_program(pointers, std::string_view(line).substr(0, size_t(count)), patience_s);
    if (status != 0 && !std::exchange(reported, true))
      send(kLines, &status, sizeof status, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

std::string status_text(int status) {
  if (status == kNotStarted) return "cannot be started, or ended with exit code 127";
  return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

// The process is forked twice: its parent has ended by the time it works, so that it is a child of
// the system.
Notifier::Notifier(const std::vector<std::string>& words, Log& log, double patience_s)
    : log_(log), program_(words.empty() ? "" : words[0]) {
  if (words.empty()) return;
  std::array<int, 2> ends{};
  ASHLAR_REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, kLaunch,
                 "launch.notify: socketpair: {}", strerror(errno));
  const pid_t middle = fork();
  if (middle == 0) {
    if (fork() != 0) _exit(0);
    notify_until_closed(words, ends[1], patience_s);
  }
  const int error = errno;
  close(ends[1]);
  lines_ = ends[0];
  ASHLAR_REQUIRE(middle > 0, kLaunch, "launch.notify: fork: {}", strerror(error));
  waitpid(middle, nullptr, 0);
}

Notifier::~Notifier() {
  if (lines_ >= 0) close(lines_);
}

void Notifier::tell(std::string_view line) {
  if (lines_ < 0) return;
  ASHLAR_ASSERT(!line.empty());
  if (int status = 0; recv(lines_, &status, sizeof status, MSG_DONTWAIT) == sizeof status)
    log_.warn("launch.notify: {} {}; its later failures are not reported", program_,
              status_text(status));
  const bool fits = line.size() <= kMostBytes;
  if (fits && send(lines_, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
  log_.warn("launch.notify was not told of an event: {}",
            fits ? strerror(errno) : "it is too long");
}

}  // namespace ashlar::launch
