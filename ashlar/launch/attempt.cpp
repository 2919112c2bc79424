#include "ashlar/launch/attempt.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

constexpr int kSignalOfShell = 128;  // mpirun's exit code of a signal is above it
constexpr int kLastSignal = 64;
constexpr int kExecFailed = 127;
constexpr std::string_view kErrorMark = "ashlar: ", kAnswerEnd = "; again: without saving";
constexpr size_t kFirstPidfd = 3;  // of a rank, in watched_

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

// Returns the signal that the starter gets if the launcher dies, so that the ranks save and stop.
// mpirun passes SIGUSR1 on to them; on SIGTERM it kills them at once.
int signal_of_orphans(StarterKind starter) {
  return starter == StarterKind::kMpirun ? SIGUSR1 : SIGTERM;
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

LocalAttempt::LocalAttempt(const AttemptCommand& command, RankSocket& socket)
    : socket_(socket), kind_(command.starter) {
  const std::vector<std::string> settings = environment_of_ranks(command);
  const std::vector<char*> arguments = pointers(command.words), variables = pointers(settings);
  std::array<int, 2> ends{};
  ASHLAR_REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe2(ends.data(), O_CLOEXEC) == 0,
                 kLaunch, "starting {}: {}", command.words[0], strerror(errno));
  const pid_t launcher = getpid();
  starter_ = fork();
  if (starter_ == 0) run_child(arguments, variables, ends[1], launcher, signal_of_orphans(kind_));
  if (starter_ > 0) starter_fd_ = PidFd(starter_);
  const int error = errno;
  close(ends[1]);
  output_ = ends[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
  if (starter_fd_) return;
  close(output_);
  if (starter_ > 0) {
    kill(starter_, SIGKILL);
    waitpid(starter_, nullptr, 0);
  }
  ASHLAR_FAIL(kLaunch, "starting {}: {}", command.words[0], strerror(error));
}

// Runs between fork and exec: system calls only.
void LocalAttempt::run_child(const std::vector<char*>& arguments,
                             const std::vector<char*>& variables, int output, pid_t launcher,
                             int orphaned) {
  const int input = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, orphaned);
  if (getppid() != launcher) _exit(kExecFailed);  // it died before that took effect
  if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(output, STDERR_FILENO) < 0)
    _exit(kExecFailed);
  execvpe(arguments[0], arguments.data(), variables.data());
  dprintf(STDERR_FILENO, "ashlar: %s cannot be started: %s\n", arguments[0], strerror(errno));
  _exit(kExecFailed);
}

LocalAttempt::~LocalAttempt() {
  constexpr int kPatience_ms = 5000;
  for (int waited_ms = 0; !fence() && waited_ms < kPatience_ms; waited_ms += 10) usleep(10'000);
  close(output_);
}

// Calls the system once more only for what is ready: this runs several times a second.
Attempt::News LocalAttempt::wait(double seconds) {
  watched_.assign({{socket_.fd(), POLLIN, 0}, {starter_fd_.fd(), POLLIN, 0}, {output_, POLLIN, 0}});
  if (reaped_) watched_[1].fd = -1;
  for (const auto& [rank, process] : pidfds_) watched_.push_back({process.fd(), POLLIN, 0});
  poll(watched_.data(), watched_.size(), int(seconds * 1000));
  News news;
  look_at_ranks(news);
  if (watched_[0].revents)
    while (const std::optional<JoinedRank> rank = socket_.accept()) join(*rank, news);
  if (watched_[1].revents && waitpid(starter_, &status_, WNOHANG) == starter_) reaped_ = true;
  if (watched_[2].revents || reaped_) read_output(news);
  if (reaped_ && !reported_) {
    reported_ = true;
    cutter_.finish([&](std::string_view line) { take_line(line, news); });
    news.ended = end_of(status_);
  }
  return news;
}

void LocalAttempt::join(const JoinedRank& rank, News& news) {
  const int number = rank.hello.rank;
  if (pidfds_.contains(number)) return;  // a stranger: that rank lives
  PidFd process(rank.pid, rank.hello.start_ticks);
  if (!process) return;  // it has ended since, which the starter reports
  pidfds_[number] = std::move(process);
  pids_[number] = rank.pid;
  host_ = rank.hello.host;
  news.joined.push_back(number);
}

// After a poll, of which watched_ has the results.
void LocalAttempt::look_at_ranks(News& news) {
  for (size_t i = kFirstPidfd; i < watched_.size(); ++i) {
    if (watched_[i].revents == 0) continue;
    const auto gone = std::ranges::find(pidfds_, watched_[i].fd,
                                        [](const auto& process) { return process.second.fd(); });
    const int rank = gone->first;
    if (first_gone_ < 0) first_gone_ = rank;
    news.gone.push_back({EvidenceKind::kGone, rank, 0,
                         fmt::format("process {} of rank {} is gone", pids_[rank], rank)});
    pids_.erase(rank);
    pidfds_.erase(gone);
  }
}

// Reads all that is in the pipe once the starter has ended, and before that a bounded part of it: a
// rank may print faster than this reads.
void LocalAttempt::read_output(News& news) {
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

void LocalAttempt::take_line(std::string_view text, News& news) {
  OutputLine line = kind_ == StarterKind::kMpirun ? parse_tagged(text)
                    : kind_ == StarterKind::kSrun ? parse_labelled(text)
                                                  : OutputLine{0, std::string(text)};
  // A rank's answer to SIGTERM, by which mpirun ends it, looks like an error.
  const bool is_error = line.text.starts_with(kErrorMark) && !line.text.ends_with(kAnswerEnd);
  if (is_error) errors_[line.rank] = line.text.substr(kErrorMark.size());
  // mpirun blames one rank; srun tells of every end, and the first one caused the others.
  if (line.rank < 0 && (kind_ == StarterKind::kMpirun || !blamed_))
    if (const std::optional<BlamedRank> blamed = blamed_rank(line.text)) blamed_ = blamed;
  if (line.rank < 0 && kind_ == StarterKind::kSrun && failed_node_.empty())
    failed_node_ = failed_node(line.text);
  news.lines.push_back(std::move(line));
}

// The rank is the one that the starter blames, or else the first that was gone.  Its last error
// says more than a number.
Evidence LocalAttempt::end_of(int status) const {
  if (!failed_node_.empty())
    return {EvidenceKind::kNodeLost, -1, 0,
            fmt::format("Slurm has given node {} up, and the step with it", failed_node_)};
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  const bool tagged = kind_ != StarterKind::kThreads;
  if (tagged && code > kSignalOfShell && code <= kSignalOfShell + kLastSignal)
    signal = code - kSignalOfShell;
  int rank = tagged ? first_gone_ : 0;
  if (blamed_) rank = blamed_->rank;
  if (blamed_ && (blamed_->exit_code != 0 || blamed_->signal != 0)) {
    code = blamed_->exit_code;
    signal = blamed_->signal;
  }
  if (signal != 0)
    return {EvidenceKind::kSignal, rank, signal, fmt::format("ended by {}", signal_text(signal))};
  std::string text = fmt::format("exit code {}", code);
  const auto said = errors_.contains(rank) ? errors_.find(rank) : errors_.begin();
  if (code != 0 && said != errors_.end()) text = said->second;
  // All ranks end with the name of the one whose bits are wrong, or of several: then of none.
  const bool accuses = code == int(ErrorKind::kDevice) && text.starts_with("rank");
  return {EvidenceKind::kExit, accuses ? accused_rank(text).value_or(-1) : rank, code, text};
}

void LocalAttempt::terminate() {
  for (const auto& [rank, process] : pidfds_) process.signal(SIGTERM);
  if (pidfds_.empty() && !reaped_) kill(starter_, SIGTERM);
}

// SIGTERM has srun kill the ranks on all nodes, also where no agent lives.  It may wait for a node
// that is lost.
bool LocalAttempt::leaves_it_to_srun() {
  constexpr double kPatience_s = 3;
  if (kind_ != StarterKind::kSrun || reaped_) return false;
  if (!fenced_since_) {
    fenced_since_ = Clock::now();
    kill(starter_, SIGTERM);
  }
  return seconds_since(*fenced_since_) < kPatience_s;
}

bool LocalAttempt::fence() {
  for (const auto& [rank, process] : pidfds_) process.signal(SIGKILL);
  if (!leaves_it_to_srun())
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
