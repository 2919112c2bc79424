// Judges the numbers of one profile by those of another: a new measurement by an earlier one, a
// machine by its sister.  Curves are compared by ranges of sizes, not by one average: a library may
// be slow between 64 and 512 MiB alone.
#pragma once

#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/machine/verdict.h"

namespace ashlar::machine {

// One judgement for each number and each range of a curve that both profiles have, in the order of
// `measured`.  The measurements of a curve are disturbed if its foreign share says so.
std::vector<Judgement> compare(const Profile& measured, const Profile& expected);

// The same, of a measurement during which others took that share of the machine.
struct Disturbance {
  double foreign_share = 0;
  std::string neighbour;
};
std::vector<Judgement> compare(const Profile& measured, const Profile& expected,
                               const Disturbance& disturbance);

// Names of the curves and numbers, facts aside, that only `profile` has.
std::vector<std::string> only_in(const Profile& profile, const Profile& other);

}  // namespace ashlar::machine
