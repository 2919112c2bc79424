#include "ashlar/launch/preflight.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/launch/attempt.h"

namespace ashlar::launch {
namespace {

constexpr int kStrangeEnd = 127;
constexpr int kWrongDataCode = 5, kDisturbedCode = 7;  // machine/verdict.h
constexpr double kMostForeign = 0.03;                  // as there
constexpr size_t kMostOutput = size_t(1) << 20;

// Seconds that the processors of this machine were busy since it started.
double busy_processors_s() {
  std::ifstream stat("/proc/stat");
  std::string word;
  std::array<double, 8> ticks{};  // user nice system idle iowait irq softirq steal
  stat >> word;
  for (double& count : ticks) stat >> count;
  return (ticks[0] + ticks[1] + ticks[2] + ticks[7]) / double(sysconf(_SC_CLK_TCK));
}

// The share of the processors that others took since then, from the child's own time.
double foreign_share(double busy_s, double own_s, double wall_s) {
  const double cores = double(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(0.0, busy_processors_s() - busy_s - own_s) / (cores * std::max(wall_s, 0.1));
}

double seconds_of(const rusage& usage) {
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The rate of an undisturbed row whose name begins so; 0: there is none.
double rate_in(const Json& json, std::string_view name) {
  for (const Json& row : json.value("results", Json::array()))
    if (row.value("experiment_name", "").starts_with(name) && !row.value("disturbed", false))
      return row.value("value", 0.0);
  return 0;
}

// The verdicts that speak against the node.
std::string faults_in(const Json& json) {
  std::string text;
  for (const Json& verdict : json.value("verdicts", Json::array())) {
    const std::string kind = verdict.value("verdict", "");
    if (kind != "bad" && kind != "wrong-data" && kind != "timed-out" && kind != "rank-lost")
      continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", kind, verdict.value("name", ""));
  }
  return text;
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

[[noreturn]] void become_check(const std::vector<char*>& words, const std::vector<char*>& variables,
                               int output, pid_t agent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nowhere = open("/dev/null", O_RDWR);
  const bool ready = getppid() == agent && dup2(nowhere, STDIN_FILENO) >= 0 &&
                     dup2(output, STDOUT_FILENO) >= 0 && dup2(nowhere, STDERR_FILENO) >= 0;
  if (ready) execve(words[0], words.data(), variables.data());
  _exit(kStrangeEnd);
}

}  // namespace

std::vector<std::string> check_words(const std::string& program, int ranks, bool thorough) {
  std::vector<std::string> words{program, "bench", "smoke", "--ranks", std::to_string(ranks)};
  if (!thorough) words.push_back("--quick");
  for (const char* word : {"--budget", thorough ? "8" : "3", "--timeout", thorough ? "10" : "4",
                           "--json", "-", "--allow-independent"})
    words.push_back(word);
  return words;
}

CheckResult judge_check(int64_t number, const CheckEnd& end) {
  CheckResult result{.number = number};
  const bool disturbed = end.foreign_share > kMostForeign;
  const auto fail = [&](std::string evidence) {
    result.passed = false;
    result.evidence = std::move(evidence);
  };
  if (end.late_s > 0) {
    if (!disturbed) fail(fmt::format("its check took more than {:.0f} s", end.late_s));
    return result;
  }
  const bool exited = WIFEXITED(end.status);
  result.sure = exited && WEXITSTATUS(end.status) == kWrongDataCode;
  if (exited && WEXITSTATUS(end.status) == kDisturbedCode) return result;
  if (exited && disturbed && !result.sure) return result;
  Json json;
  try {
    json = parse_json(end.output, "the check", ErrorKind::kCorrupt);
    if (!disturbed) {
      result.product_rate = rate_in(json, "product");
      result.memory_rate = rate_in(json, "memory");
    }
    if (exited && WEXITSTATUS(end.status) == 0) return result;
    fail(faults_in(json));
  } catch (const std::exception&) {  // it ended early
    fail("");
  }
  const std::string text = fmt::format("its check ended with {}", end_text(end.status));
  result.evidence = result.evidence.empty() ? text : text + ": " + result.evidence;
  return result;
}

void Preflight::obey(const CheckOrder& order, double now) {
  if (order.number == 0 || order.number == order_.number) return;
  stop();
  begin(order, now);
}

void Preflight::begin(const CheckOrder& order, double now) {
  order_ = order;
  began_s_ = now;
  busy_s_ = busy_processors_s();
  output_.clear();
  std::vector<std::string> words = check_words(program_, ranks_, order.thorough);
  std::vector<char*> arguments, variables;
  for (std::string& word : words) arguments.push_back(word.data());
  for (char** variable = environ; *variable; ++variable)
    if (!is_hidden_from_ranks(*variable)) variables.push_back(*variable);
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  std::array<int, 2> ends{};
  const pid_t agent = getpid();
  const bool piped = pipe2(ends.data(), O_CLOEXEC) == 0;
  child_ = piped ? fork() : -1;
  if (child_ == 0) become_check(arguments, variables, ends[1], agent);
  if (child_ < 0) {  // the node lacks processes or files
    result_ = {order.number, false, fmt::format("its check does not start: {}", strerror(errno))};
    child_ = 0;
  }
  if (!piped) return;
  close(ends[1]);
  output_fd_ = ends[0];
  fcntl(output_fd_, F_SETFL, O_NONBLOCK);
}

void Preflight::read_output() {
  std::array<char, 1 << 14> bytes{};
  for (ssize_t count; (count = read(output_fd_, bytes.data(), bytes.size())) > 0;)
    if (output_.size() < kMostOutput) output_.append(bytes.data(), size_t(count));
}

const CheckResult& Preflight::look(double now) {
  if (child_ == 0) return result_;
  read_output();
  CheckEnd end;
  rusage usage{};
  const bool ended = wait4(child_, &end.status, WNOHANG, &usage) == child_;
  const double limit_s = order_.thorough ? kThorough_s : kQuick_s;
  if (!ended && now - began_s_ <= limit_s) return result_;
  if (!ended) end.late_s = limit_s;
  const bool gone = ended || kill_child(end.status, usage);
  read_output();
  end.output = std::move(output_);
  end.foreign_share = foreign_share(busy_s_, seconds_of(usage), now - began_s_);
  result_ = judge_check(order_.number, end);
  if (!gone) result_ = {order_.number, false, "its check does not end after SIGKILL"};
  child_ = 0;
  stop();
  return result_;
}

// Whether it is gone: a child that waits for a device may stay, and the agent does not wait for it.
bool Preflight::kill_child(int& status, rusage& usage) {
  constexpr int kTries = 20, kTry_us = 10'000;
  kill(-child_, SIGKILL);
  for (int tries = 0; tries < kTries; ++tries, usleep(kTry_us))
    if (wait4(child_, &status, WNOHANG, &usage) == child_) return true;
  return false;
}

void Preflight::stop() {
  int status = 0;
  rusage usage{};
  if (child_ > 0) kill_child(status, usage);
  child_ = 0;
  if (output_fd_ >= 0) close(output_fd_);
  output_fd_ = -1;
}

}  // namespace ashlar::launch
