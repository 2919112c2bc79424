// Changes to how a rank communicates, for measurements of what communication costs.  Results of
// whatever runs meanwhile are wrong (mute), or late.
#pragma once

#include <atomic>

namespace ashlar::comm {

class Group;

// While a rank is muted, operations of all its groups end at once: they move and count nothing, and
// outputs stay as they are, so that compute can be timed alone.  On every rank, and only where all
// that was submitted is done.  `group`: any one of the rank.
void mute(Group& group, bool muted);

// Operations of the group begin this much later on this rank, while their lane waits: shows who
// waits for whom.  One group of a rank at a time; 0: none.
void delay(Group& group, double seconds);

// Groups that any group of this rank splits off from now on share the lane of their parent,
// whatever lane they ask for: shows what lanes gain.
void keep_one_lane(Group& group, bool keep);

// The state of these, in the World.
struct Measuring {
  bool muted = false, one_lane = false;
  std::atomic<const Group*> delayed{nullptr};
  std::atomic<double> delay_s{0};
  double delay_of(const Group& group) const { return delayed == &group ? delay_s.load() : 0; }
};

}  // namespace ashlar::comm
