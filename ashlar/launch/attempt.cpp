#include "ashlar/launch/attempt.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ashlar/core/error.h"
#include "ashlar/core/process.h"

namespace ashlar::launch {
namespace {

constexpr int kSignalOfShell = 128;  // mpirun's exit code of a signal is above it
constexpr int kLastSignal = 64;
constexpr int kExecFailed = 127;
constexpr std::string_view kErrorMark = "ashlar: ";

int open_pidfd(pid_t pid) {
  return int(syscall(SYS_pidfd_open, pid, 0));
}
void signal_pidfd(int fd, int number) {
  syscall(SYS_pidfd_send_signal, fd, number, nullptr, 0);
}

bool is_readable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, 0) == 1;
}

std::vector<std::string> environment_of_ranks(const AttemptCommand& command) {
  std::vector<std::string> settings;
  const auto is_set_anew = [&](std::string_view variable) {
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    return std::ranges::any_of(command.variables,
                               [&](const auto& v) { return v.starts_with(name); });
  };
  for (char** variable = environ; *variable; ++variable)
    if (!is_hidden_from_ranks(*variable) && !is_set_anew(*variable))
      settings.emplace_back(*variable);
  settings.insert(settings.end(), command.variables.begin(), command.variables.end());
  return settings;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Children of this process: orphans that it has adopted, too.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::string self = std::to_string(getpid());
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid; list >> pid;) found.push_back(pid);
  }
  return found;
}

std::string signal_text(int number) {
  const char* name = sigdescr_np(number);
  return fmt::format("signal {} ({})", number, name ? name : "unknown");
}

}  // namespace

bool is_hidden_from_ranks(std::string_view variable) {
  if (variable.starts_with("PMIX_MCA_")) return false;  // a setting of the user
  constexpr std::array<std::string_view, 11> kPrefixes{"OMPI_COMM_WORLD_",
                                                       "OMPI_UNIVERSE_",
                                                       "OMPI_APP_",
                                                       "OMPI_MCA_orte_",
                                                       "OMPI_MCA_ess",
                                                       "ORTE_",
                                                       "PMIX_",
                                                       "PMI_",
                                                       "PMI2_",
                                                       "SLURM_",
                                                       "MPI_LOCAL"};
  return std::ranges::any_of(kPrefixes, [&](auto prefix) { return variable.starts_with(prefix); });
}

Attempt::Attempt(const AttemptCommand& command, RankSocket& socket)
    : socket_(socket), tagged_(command.tagged) {
  const std::vector<std::string> settings = environment_of_ranks(command);
  const std::vector<char*> arguments = pointers(command.words), variables = pointers(settings);
  std::array<int, 2> ends{};
  ASHLAR_REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe2(ends.data(), O_CLOEXEC) == 0,
                 kLaunch, "starting {}: {}", command.words[0], strerror(errno));
  const pid_t launcher = getpid();
  starter_ = fork();
  if (starter_ == 0) run_child(arguments, variables, ends[1], launcher);
  if (starter_ > 0) starter_fd_ = open_pidfd(starter_);
  const int error = errno;
  close(ends[1]);
  output_ = ends[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
  if (starter_fd_ >= 0) return;
  close(output_);
  if (starter_ > 0) {
    kill(starter_, SIGKILL);
    waitpid(starter_, nullptr, 0);
  }
  ASHLAR_FAIL(kLaunch, "starting {}: {}", command.words[0], strerror(error));
}

// Runs between fork and exec: system calls only.
void Attempt::run_child(const std::vector<char*>& arguments, const std::vector<char*>& variables,
                        int output, pid_t launcher) {
  const int input = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(kExecFailed);  // it died before that took effect
  if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(output, STDERR_FILENO) < 0)
    _exit(kExecFailed);
  execvpe(arguments[0], arguments.data(), variables.data());
  dprintf(STDERR_FILENO, "ashlar: %s cannot be started: %s\n", arguments[0], strerror(errno));
  _exit(kExecFailed);
}

Attempt::~Attempt() {
  constexpr int kPatience_ms = 5000;
  for (int waited_ms = 0; !fence() && waited_ms < kPatience_ms; waited_ms += 10) usleep(10'000);
  for (const auto& [rank, fd] : pidfds_) close(fd);
  close(starter_fd_);
  close(output_);
}

Attempt::News Attempt::wait(double seconds) {
  std::vector<pollfd> watched{{socket_.fd(), POLLIN, 0}};
  if (!reaped_) watched.push_back({starter_fd_, POLLIN, 0});
  if (output_ >= 0) watched.push_back({output_, POLLIN, 0});
  for (const auto& [rank, fd] : pidfds_) watched.push_back({fd, POLLIN, 0});
  poll(watched.data(), watched.size(), int(seconds * 1000));
  News news;
  while (const std::optional<JoinedRank> rank = socket_.accept()) join(*rank, news);
  look_at_ranks(news);
  if (!reaped_ && waitpid(starter_, &status_, WNOHANG) == starter_) reaped_ = true;
  read_output(news);
  if (reaped_ && !reported_) {
    reported_ = true;
    cutter_.finish([&](std::string_view line) { take_line(line, news); });
    news.ended = end_of(status_);
  }
  return news;
}

void Attempt::join(const JoinedRank& rank, News& news) {
  const int number = rank.hello.rank;
  if (pidfds_.contains(number)) return;  // a stranger: that rank lives
  const int fd = open_pidfd(rank.pid);
  const auto stat = stat_of_process(rank.pid);
  if (fd < 0 || !stat || stat->start_ticks != rank.hello.start_ticks) {
    if (fd >= 0) close(fd);
    return;  // it has ended since, which the starter reports
  }
  pidfds_[number] = fd;
  pids_[number] = rank.pid;
  host_ = rank.hello.host;
  news.joined.push_back(number);
}

void Attempt::look_at_ranks(News& news) {
  for (auto rank = pidfds_.begin(); rank != pidfds_.end();) {
    if (!is_readable(rank->second)) {
      ++rank;
      continue;
    }
    if (first_gone_ < 0) first_gone_ = rank->first;
    news.gone.push_back(
        {EvidenceKind::kGone, rank->first, 0,
         fmt::format("process {} of rank {} is gone", pids_[rank->first], rank->first)});
    close(rank->second);
    pids_.erase(rank->first);
    rank = pidfds_.erase(rank);
  }
}

// Reads all that is in the pipe once the starter has ended, and before that a bounded part of it: a
// rank may print faster than this reads.
void Attempt::read_output(News& news) {
  constexpr int kReads = 16;
  std::array<char, 1 << 16> bytes{};
  for (int reads = 0; output_ >= 0 && (reaped_ || reads < kReads); ++reads) {
    const ssize_t count = read(output_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) {
      close(output_);
      output_ = -1;
    }
    if (count <= 0) return;
    cutter_.add({bytes.data(), size_t(count)},
                [&](std::string_view line) { take_line(line, news); });
  }
}

void Attempt::take_line(std::string_view text, News& news) {
  OutputLine line = tagged_ ? parse_tagged(text) : OutputLine{0, std::string(text)};
  if (line.text.starts_with(kErrorMark)) errors_[line.rank] = line.text.substr(kErrorMark.size());
  if (line.rank < 0)
    if (const std::optional<int> rank = blamed_rank(line.text)) blamed_ = rank;
  news.lines.push_back(std::move(line));
}

// The rank is the one that the starter blames, or else the first that was gone.  Its last error
// says more than a number.
Evidence Attempt::end_of(int status) const {
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (tagged_ && code > kSignalOfShell && code <= kSignalOfShell + kLastSignal)
    signal = code - kSignalOfShell;
  const int rank = tagged_ ? blamed_.value_or(first_gone_) : 0;
  if (signal != 0)
    return {EvidenceKind::kSignal, rank, signal, fmt::format("ended by {}", signal_text(signal))};
  std::string text = fmt::format("exit code {}", code);
  const auto said = errors_.contains(rank) ? errors_.find(rank) : errors_.begin();
  if (code != 0 && said != errors_.end()) text = said->second;
  // All ranks end with the name of the one whose bits are wrong, or of several: then of none.
  const bool accuses = code == int(ErrorKind::kDevice) && text.starts_with("rank");
  return {EvidenceKind::kExit, accuses ? accused_rank(text).value_or(-1) : rank, code, text};
}

void Attempt::terminate() {
  for (const auto& [rank, fd] : pidfds_) signal_pidfd(fd, SIGTERM);
  if (pidfds_.empty() && !reaped_) kill(starter_, SIGTERM);
}

bool Attempt::fence() {
  for (const auto& [rank, fd] : pidfds_) signal_pidfd(fd, SIGKILL);
  for (const pid_t pid : children()) kill(pid, SIGKILL);
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == starter_) {
      reaped_ = true;
      status_ = status;
    }
    if (pid == 0) return false;  // some still live
    if (pid < 0 && errno != EINTR) return true;
  }
}

}  // namespace ashlar::launch
