// The table of recipe keys.  Reading, overrides, printing, ranges, messages and docs/recipes.md all
// follow it: a new key is one row in keys.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ashlar/spec/recipe.h"

namespace ashlar {

enum class KeyType : uint8_t {
  kBoolean,
  kInteger,
  kNumber,
  kText,
  kWord,
  kBlend,
  kLayers,
  kIds,
  kTexts
};

// The value of a key; words (enums) travel as text.
using KeyValue =
    std::variant<bool, int64_t, double, std::string, std::vector<BlendEntry>,
                 std::vector<LayerType>, std::vector<int64_t>, std::vector<std::string>>;

// Bounds of integers and numbers.  Infinite bounds are no bounds; the number itself must be finite.
struct KeyRange {
  double min = 0, max = 0;
  bool min_excluded = false, max_excluded = false;
};

struct Key {
  std::string name;  // "section.key"
  KeyType type;
  std::string meaning;  // one line, for docs/recipes.md
  bool required = false;
  bool shapes = false;  // it decides which tensors a model has, or their shapes
  KeyRange range;
  // All words of a kWord key, in the order of its enum; the one that a kInteger key also takes.
  std::vector<std::string> words;
  std::function<KeyValue(const Recipe&)> get;
  std::function<void(Recipe&, const KeyValue&)> set;  // a value of the right type and word
};

// The rows, in the order in which recipes are printed and read; sections are contiguous.
const std::vector<Key>& recipe_keys();

// The text after "expected": "an integer from 1 to 1024", "one of cosine, linear, constant".
std::string expected_of(const Key& key);
// The value as it is written in a recipe, in one line.
std::string value_text(const KeyValue& value);
// "NAME is VALUE; expected ..." if a number leaves the key's range, else "".
std::string range_problem(const Key& key, const KeyValue& value, std::string_view shown_name);

}  // namespace ashlar
