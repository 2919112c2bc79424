// Tells a person of ranks that others wait for long, before a time-out ends the run: one line when
// that was noticed, one when they go on.
//
// Watched  what a rank waits for its partners in one round while its caller waits too: not a
//          message that is posted far ahead, and nothing that ranks wait for together by meeting
//          again and again (agree.h).
// Told     by the lowest of the partners that have come, so that of many ranks one speaks.
// Usual    a rank may have to compute for long before it sends.  When operations of a label were
//          told of twice, from then on only a wait of twice the shorter of the last two is.
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
  std::function<void(std::string_view line)> line;  // from the threads of lanes; null: nobody asks
  double after_s = 10;
};

// Of one lane of a rank; used by the lane's thread.
class LateWatch {
 public:
  // rank: of the world.
  LateWatch(int rank, const Telling& telling) : rank_(rank), telling_(telling) {}
  void begin(const Round& round);
  // How long a wait is told of; infinite once it was, and where nobody asks.
  double due_s() const { return due_s_; }
  // The round has waited that long for `late` of these partners.
  void tell(const Round& round, double waited_s, std::span<const int> partners,
            std::span<const int> late);
  void end(const Round& round);  // all have come and are done

 private:
  const int rank_;
  const Telling telling_;
  double due_s_ = 0;
  std::string told_;  // the ranks that were told of in this round
  double waited_s_ = 0;
  Clock::time_point told_at_;
  std::map<std::string, std::array<double, 2>, std::less<>> long_waits_;  // the last two, by label
};

}  // namespace ashlar::comm
