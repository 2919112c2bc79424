// The check of a node before ranks run there: `ashlar bench smoke`, in a child of the node's agent.
//
//   quick      of a node whose ranks have just ended; 5 s at most
//   thorough   of a node that is new to the leader, or was blamed for a fault; 15 s at most
//
// A node fails if the child crashes, finds wrong results or a rank that does not come, or has not
// ended by then.  Where other programs take the processors, its numbers mean nothing, and a child
// that is late proves nothing.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::launch {

struct CheckOrder {
  int64_t number = 0;  // of the check; 0: there is none
  bool thorough = false;
  friend bool operator==(const CheckOrder&, const CheckOrder&) = default;
};

struct CheckResult {
  int64_t number = 0;  // of the check; 0: there is none
  bool passed = true;
  std::string evidence = {};                 // "": it passed
  double product_rate = 0, memory_rate = 0;  // 0: unknown
  bool sure = false;  // it failed by wrong results, so that no second look is needed
  friend bool operator==(const CheckResult&, const CheckResult&) = default;
};

// How the child of a check ended.
struct CheckEnd {
  int status = 0;            // of waitpid
  double late_s = 0;         // its limit, if it was ended then
  double foreign_share = 0;  // of the node's processors, that other programs took
  std::string output = {};   // its JSON
};
CheckResult judge_check(int64_t number, const CheckEnd& end);

std::vector<std::string> check_words(const std::string& program, int ranks, bool thorough);

class Preflight {
 public:
  static constexpr double kQuick_s = 5, kThorough_s = 15;
  Preflight(std::string program, int ranks) : program_(std::move(program)), ranks_(ranks) {}
  ~Preflight() { stop(); }
  Preflight(const Preflight&) = delete;
  Preflight& operator=(const Preflight&) = delete;

  // Begins the check unless it is the last one; it ends one that still runs.
  void obey(const CheckOrder& order, double now);
  // Never waits.  The last result; number 0: none yet.
  const CheckResult& look(double now);

 private:
  void begin(const CheckOrder& order, double now);
  void read_output();
  bool kill_child(int& status, rusage& usage);
  void stop();
  const std::string program_;
  const int ranks_;
  CheckOrder order_;
  CheckResult result_;
  pid_t child_ = 0;  // 0: none
  int output_fd_ = -1;
  std::string output_;
  double began_s_ = 0, busy_s_ = 0;  // busy: the node's processors, then
};

}  // namespace ashlar::launch
