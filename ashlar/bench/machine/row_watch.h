// The processor time that other programs take while one row of a table is measured.
//
// /proc/stat counts in ticks of 10 ms, which tells nothing about a row of 20 ms.  The kernel also
// keeps a clock of every process, exact to a nanosecond, that any process may read.  One rank of
// each machine reads all of them between rows, and subtracts the ranks' own.
//
//   Cost    a look at all processes takes some 100 us.  It is taken only when the time since the
//           one before is 100 times as long; shorter rows share the share of the rows around them.
//   Limits  clocks do not show what a hypervisor or another container takes, nor processes that
//           began and ended in between.  ForeignWatch, which sees the whole part by /proc/stat,
//           sees these too; spread() adds the difference to every row.  Threads of the kernel do
//           not count here: they work for the ranks as well.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ashlar/bench/machine/foreign_share.h"
#include "ashlar/machine/verdict.h"

namespace ashlar::bench {

struct RowShare {
  std::optional<double> share;  // per core and second, of the machine with the largest
  int64_t rows = 1;             // that share it, because they were too short to tell apart
  double seconds = 0;           // of these rows together
};

class RowWatch {
 public:
  // Every rank has a watch, and all call begin, again and end together.
  explicit RowWatch(comm::Group& ranks);
  void begin();  // of a row; the end of the one before
  // At the end of a row: whether others took more than kMaxForeignShare, so that it should be
  // measured once more.  False for a row that was measured twice, and where others disturb so many
  // rows that the part is disturbed anyway.  The same on all ranks.
  bool again();
  int64_t row() const { return int64_t(windows_of_rows_.size()) - 1; }  // -1: none began
  std::vector<RowShare> end();
  double seconds() const { return spent_s_; }  // that this rank spent watching

 private:
  struct Process {
    clockid_t clock;
    bool counts;  // a program, not a thread of the kernel and no rank
  };
  using Times = std::map<pid_t, double>;  // seconds of every process that counts
  struct Window {                         // between two looks
    double share = 0, seconds = 0;
    int64_t rows = 0;
  };
  Times look();
  bool is_due() const;
  void close();  // looks, and gives the open window its share

  comm::Group& ranks_;
  bool looks_ = false;  // this rank, for its machine
  double num_cpus_ = 1;
  std::set<pid_t> own_;
  std::map<pid_t, Process> processes_;
  Times before_;
  Clock::time_point looked_;
  double look_s_ = 0;
  std::vector<size_t> windows_of_rows_;
  std::vector<Window> windows_;
  bool is_open_ = false;  // the last window
  int64_t num_repeated_ = 0;
  int64_t repeated_row_ = -1;
  double spent_s_ = 0;
};

inline bool is_disturbed(const RowShare& row) {
  return row.share.value_or(0) > machine::kMaxForeignShare;
}
// Adds to every row the part's share beyond the rows' own, and gives rows whose share is unknown
// that of the part.
void spread(const ForeignShare& part, std::vector<RowShare>& rows);

}  // namespace ashlar::bench
