// Where the time of a start goes: from the start of the process to the end of the first optimizer
// step, part after part, with the CPU time and the page faults of each.
//
// Time     the process's age when this object is made, to 10 ms, is the part "loading the program";
//          later parts are measured.  Time outside of all parts is shown as unaccounted.
// Threads  those of the whole process count; one thread makes all calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/clock.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::train {

class StartTiming {
 public:
  StartTiming();
  void enter(std::string_view part);  // ends the part before; a part may be entered again
  void leave();
  // After the first step; later calls of enter do nothing.  trace: that of the step, whose longest
  // kernels are shown below its parts; it is stopped and released.
  void finish(Trace& trace);

  double total_s() const;  // until finish()
  double unaccounted_s() const;
  std::string text() const;  // a table

 private:
  struct Use {  // of this process since its start
    double user_s = 0, kernel_s = 0;
    int64_t faults = 0;
    static Use now();
  };
  struct Part {
    std::string name;
    double seconds = 0;
    Use use;
  };
  struct Kernel {
    std::string op;
    double seconds = 0;
    int64_t calls = 0;
  };

  Clock::time_point start_;
  double age_s_, total_s_ = 0;  // age: of the process at start_
  bool finished_ = false;
  std::vector<Part> parts_;
  std::vector<Kernel> kernels_;  // longest first
  // The part that runs, and when it began.
  Part* running_ = nullptr;
  Clock::time_point entered_;
  Use entered_use_;
};

}  // namespace ashlar::train
