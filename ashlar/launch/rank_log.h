// The lines that ranks print in all attempts, in files of the run's directory and on the console.
//
//   launch/log                      all lines: time, attempt, host, ranks, text
//   launch/ranks/ATTEMPT/RANK.log   the lines of one rank as they are
//
// A line that several ranks print within kFold_s is written once, with their numbers.  A file that
// cannot be written is a warning, once: the run goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/launch/output_lines.h"

namespace ashlar::launch {

// "2026-11-27T20:58:01.123Z", of seconds since 1970.
std::string time_text(double unix_s);

class RankLog {
 public:
  static constexpr double kFold_s = 0.2;
  // directory: RUN_DIR/launch, which exists.  clock: seconds since 1970.
  RankLog(FileSystem& files, std::string directory, Log& console, std::function<double()> clock);
  ~RankLog();  // writes what is held
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  void begin(int attempt);
  void add(const OutputLine& line, const std::string& host);
  void flush();  // writes what has been held for kFold_s
  // A line of the launcher itself, for the file alone, after all lines before it.
  void note(const std::string& text);

 private:
  struct Held {
    double time_s = 0;
    std::string host, text;
    std::set<int> ranks;
  };
  void write_all();
  void write_held(const Held& held);
  void append(const std::string& path, const std::string& line);
  void warn(const Error& error);

  FileSystem& files_;
  const std::string directory_;
  Log& console_;
  const std::function<double()> clock_;
  int attempt_ = 0;
  std::vector<Held> held_;
  std::map<std::string, std::unique_ptr<File>> open_;
  bool warned_ = false;
};

}  // namespace ashlar::launch
