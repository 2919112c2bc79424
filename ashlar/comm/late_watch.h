// Reports ranks that others wait for, before a time-out ends the run: one line when the wait is
// long, one when the operation goes on.
//
// Watched   the time that a rank waits for its partners in one round while its caller waits too.
//           Messages posted far ahead are not watched, nor are waits in which ranks meet again and
//           again (agree.h).
// Reported  by the lowest of the partners that have arrived, so that only one rank reports.
// Usual     a rank may have to compute for a long time before it sends.  After two reports about
//           one label, only a wait of twice the shorter of the last two waits is reported.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/comm/transport.h"
#include "ashlar/core/clock.h"

namespace ashlar::comm {

struct Telling {
  std::function<void(std::string_view line)> line;  // called on lanes' threads; null: no reports
  double after_s = 10;
};

// The watch of one lane of a rank; used by the lane's thread.
class LateWatch {
 public:
  // rank: of the world.
  LateWatch(int rank, const Telling& telling) : rank_(rank), telling_(telling) {}
  void begin(const Round& round);
  // The wait after which to report; infinite after the report, and without reports.
  double due_s() const { return due_s_; }
  // Reports that the round has waited that long for `late` of these partners.
  void tell(const Round& round, double waited_s, std::span<const int> partners,
            std::span<const int> late);
  void end(const Round& round);  // all have arrived and are done

 private:
  const int rank_;
  const Telling telling_;
  double due_s_ = 0;
  std::string told_;  // the ranks reported in this round
  double waited_s_ = 0;
  Clock::time_point told_at_;
  std::map<std::string, std::array<double, 2>, std::less<>> long_waits_;  // the last two, by label
};

}  // namespace ashlar::comm
