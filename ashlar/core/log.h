// Messages for people, on stderr.  Results go to stdout, never through here.
//
// A call writes one line.  Foreign text in it (a path, a host, a reason) can neither control the
// terminal nor begin another line.  Only lines() writes several.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace ashlar {

class Log {
 public:
  using Sink = std::function<void(std::string_view line)>;
  Log();                    // lines to stderr
  explicit Log(Sink sink);  // tests
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write("", fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    write("warning: ", fmt::format(format, std::forward<Args>(args)...));
  }
  void lines(std::string_view text);                 // the program's own text: its newlines stay
  bool interactive() const { return interactive_; }  // stderr is a terminal

 private:
  friend class Progress;
  void write(std::string_view prefix, const std::string& text);
  void put_printable(const std::string& text);
  void rewrite_line(const std::string& text);  // interactive: in place; else nothing
  void close_line();                           // the rewritten line stays, the next starts below
  Sink sink_;
  bool interactive_ = false;
  bool line_open_ = false;
  std::mutex mutex_;
};

// A progress line for work that lasts over two seconds:
// "tokenizing  41% 12.3/30.1 MB 4.1 MB/s ETA 4 s".  On a terminal it is rewritten in place;
// elsewhere a line is printed at 2 s and then every 10 s.
class Progress {
 public:
  // total 0: unknown.  unit "B" prints KB, MB, GB; anything else prints plain counts with k, M, G.
  // total 0 and unit "s": work without a measure of progress; only its time is shown.
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  Progress(Log& log, std::string label, int64_t total, std::string unit,
           Clock clock = std::chrono::steady_clock::now);
  ~Progress();  // closes the line; prints a final line only if one was printed before
  void advance(int64_t amount) { set(done_ + amount); }
  void set(int64_t done);

 private:
  std::string line(double seconds) const;
  Log& log_;
  std::string label_, unit_;
  Clock clock_;
  int64_t total_, done_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
  bool printed_ = false;
};

}  // namespace ashlar
