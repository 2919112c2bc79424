#include "ashlar/core/stack_note.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar {
namespace {

constexpr int kStackSignal = SIGUSR2;
constexpr std::string_view kLastLine = "end";
constexpr int kMostFrames = 64, kShownFrames = 12;
constexpr int kFramesOfHandler = 2;  // the handler, and the return from it

// A handler may use only such variables; they are set before it is installed.
std::array<char, 4096> note_path;  // "DIRECTORY/stack-", where the thread's number follows
size_t note_path_size = 0;

// System calls, and what glibc calls safe in handlers once the unwinder is loaded.
void write_stack(int) {
  const int kept_errno = errno;
  std::array<void*, kMostFrames> frames;
  const int num_frames = backtrace(frames.data(), kMostFrames);
  std::array<char, note_path.size() + 24> path{};
  std::memcpy(path.data(), note_path.data(), note_path_size);
  std::to_chars(path.data() + note_path_size, path.data() + path.size() - 1, gettid());
  const int fd = open(path.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0) {
    backtrace_symbols_fd(frames.data(), num_frames, fd);
    [[maybe_unused]] const ssize_t ignored = write(fd, "end\n", 4);
    close(fd);
  }
  errno = kept_errno;
}

std::string note_prefix(const std::string& directory) {
  return directory + "/stack-";
}

bool catches_stack_signal(int64_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigCgt:"))
      return std::strtoull(line.c_str() + 7, nullptr, 16) >> (kStackSignal - 1) & 1;
  return false;
}

// "read" of "/lib/libc.so.6(read+0x4d) [0x7f12]"; without a name "libc.so.6+0x4d".
std::string frame_text(const std::string& line) {
  const size_t open = line.find('('), close = line.find(')', open);
  if (open == line.npos || close == line.npos) return line;
  const std::string module = line.substr(0, open).substr(line.substr(0, open).rfind('/') + 1);
  const std::string inside = line.substr(open + 1, close - open - 1);
  const std::string name = inside.substr(0, inside.rfind('+'));
  if (name.empty()) return module + inside;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  if (status != 0) return name;
  const std::string text = plain.get();
  return text.substr(0, text.find('('));  // without its arguments
}

std::string stack_text(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = kFramesOfHandler; i < lines.size() && i < kFramesOfHandler + kShownFrames; ++i)
    text += (text.empty() ? "" : " < ") + frame_text(lines[i]);
  return text;
}

}  // namespace

void answer_stack_signals(const std::string& directory) {
  const std::string prefix = note_prefix(std::filesystem::absolute(directory));
  ASHLAR_REQUIRE(prefix.size() < note_path.size(), kConfig, "{}: the path is too long", directory);
  std::array<void*, 1> frame;
  backtrace(frame.data(), 1);  // loads the unwinder, which a handler must not
  prefix.copy(note_path.data(), prefix.size());
  note_path_size = prefix.size();
  struct sigaction action = {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  ASHLAR_ASSERT(sigaction(kStackSignal, &action, nullptr) == 0);
}

std::string ask_for_stack(int64_t process, int64_t thread, const std::string& directory,
                          double seconds) {
  if (!catches_stack_signal(process)) return "";
  std::error_code error;
  const std::string path = note_prefix(directory) + std::to_string(thread);
  std::filesystem::remove(path, error);
  if (syscall(SYS_tgkill, process, thread, kStackSignal) != 0) return "";
  const auto begin = Clock::now();
  while (seconds_since(begin) < seconds) {
    std::ifstream note(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(note, line);) {
      if (line == kLastLine) {
        std::filesystem::remove(path, error);
        return stack_text(lines);
      }
      lines.push_back(line);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "";
}

std::string kernel_stack(int64_t process, int64_t thread) {
  const std::string task = fmt::format("/proc/{}/task/{}/", process, thread);
  std::ifstream stack(task + "stack");
  std::string text;
  for (std::string address, name; stack >> address >> name;)
    text += (text.empty() ? "" : " < ") + name.substr(0, name.find('+'));
  if (!text.empty()) return text;
  std::ifstream wchan(task + "wchan");
  wchan >> text;
  return text == "0" ? "" : text;
}

}  // namespace ashlar
