// Members of a config.json that no family's reader asks for (hf/fields.h).  Some change nothing
// here, and the table has the reason; some would change the arithmetic, and must have a value that
// does not; all others are named to the user once.
//
// Source   docs/hugging-face.md has both tables, for people.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/models/hf/fields.h"

namespace ashlar::models {

struct HarmlessMember {
  std::string_view name, reason;
  std::string_view families = "";  // model_types with spaces between; "": all
};
std::span<const HarmlessMember> harmless_members();

struct NeutralMember {
  std::string_view name;
  std::string_view
      values;  // a JSON list of the values that it, or its entries, may have beside null
  std::string_view why;
  std::string_view families = "";
};
std::span<const NeutralMember> neutral_members();

// Called after a family has read its keys.  kData for a member that would change the arithmetic;
// returns the names of members that are not followed and are not known to be harmless.
std::vector<std::string> check_other_members(const HfFields& fields, std::string_view model_type);

}  // namespace ashlar::models
