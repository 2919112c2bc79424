// A number of a machine with its unit and its origin, which every number of a profile carries.
#pragma once

#include <string>
#include <string_view>

namespace ashlar::machine {

enum class Origin {
  kMeasured,   // by this program, on the machine of the profile
  kPublished,  // by others, on a machine of this kind
  kVendor,     // a data sheet
  kAssumed,    // a rule of thumb or a guess, about which every plan that uses it warns
};
std::string_view to_string(Origin origin);

struct Quantity {
  double value = 0;
  std::string unit;
  Origin origin = Origin::kAssumed;
  std::string from;   // the command that measured it, or the publication
  std::string date;   // YYYY-MM-DD of the measurement; "" if it was not measured
  double spread = 0;  // (p90 - p10) / median of the measurement; 0 if it has no repeats
};

}  // namespace ashlar::machine
