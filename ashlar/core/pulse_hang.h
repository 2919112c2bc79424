// Which ranks a run hangs in, from the pages of their pulse.
//
// Ranks run the operations of a group in one order, and count them.  So a rank whose thread waits
// for number n of a group waits for the ranks of that group that have not queued number n.  Ranks
// that others wait for, and that wait for nobody, are the cause; a rank that waits is never one.
//   A lane runs its operations in order: a rank waits for the first one there that has not ended.
//   Operations without a number (send_receive of a group) count as queued by every rank that waits:
// it may have no part in them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/pulse.h"

namespace ashlar {

struct PulseHang {
  enum class Kind : uint8_t {
    kMissing,     // `ranks` have not come to the operation; none: ranks without a page
    kMismatch,    // `ranks` have queued another operation under the same number, or wait for others
                  // that wait for them
    kAllArrived,  // all its ranks have queued the operation, and it does not end: the fabric
    kWorking,     // no rank waits: `ranks` are at work
  };
  Kind kind = Kind::kWorking;
  std::vector<int> ranks;    // ascending
  std::vector<int> waiting;  // the ranks that wait for the operation
  PulseOperation operation;  // what they wait for, in a queue of theirs
  std::string group;         // its group's name
};

// pages: at least one.  To be called once they have stood for too long: ranks of a healthy run wait
// for each other all the time.
PulseHang find_hang(const std::map<int, PulsePage>& pages);

// "rank 37 did not come to reduce_scatter 'gradients' (number 1842 of dp), silent 12 s in backward
// of block 12; ranks 0-36, 38-63 wait".  Silence and place belong to the first rank.
std::string describe(const PulseHang& hang, const std::map<int, PulsePage>& pages, int64_t now_ns);

std::string place_text(const PulsePage& page);         // "backward of block 12"
std::string format_ranks(std::span<const int> ranks);  // "rank 3", "ranks 0-2, 5"; ascending

}  // namespace ashlar
