// Keys that recipes of older versions have.  Checkpoints keep such recipes, so they are read past
// there; in a recipe file or on the command line they are refused with what stands in their place.
#pragma once

#include <span>
#include <string_view>

namespace ashlar {

struct RetiredKey {
  std::string_view name;     // "section.key"
  std::string_view instead;  // what follows "use": keys that exist
};

std::span<const RetiredKey> retired_keys();

}  // namespace ashlar
