// Keys of older versions that no longer exist.  Recipes saved in checkpoints may contain them, and
// they are ignored there; in a recipe file or on the command line they are refused, with the keys
// to use instead.
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
