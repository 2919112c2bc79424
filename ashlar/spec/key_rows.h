// Makes rows of the table of keys (keys.cpp) from the fields that they read and set.
#pragma once

#include <limits>
#include <type_traits>
#include <utility>

#include "ashlar/spec/keys.h"

namespace ashlar {

inline constexpr double kNone = std::numeric_limits<double>::infinity();

// Upper bounds keep every product of sizes (parameters, bytes of state) inside an int64_t.
inline constexpr KeyRange kLayerCount{1, 1024};
inline constexpr KeyRange kHeadCount{1, 1024};
inline constexpr KeyRange kWidth{1, 131072};
inline constexpr KeyRange kTokenId{-1, 2147483646};
inline constexpr KeyRange kCount{0, kNone};
inline constexpr KeyRange kAtLeastOne{1, kNone};
inline constexpr KeyRange kNotNegative{0, kNone};
inline constexpr KeyRange kPositive{0, kNone, true};
inline constexpr KeyRange kBeta{0, 1, false, true};

// A member of a struct that is itself a member of a section.
template <class Section, class Part, class Field>
struct Inside {
  Part Section::*part;
  Field Part::*field;
};
template <class Section, class Part, class Field>
Inside<Section, Part, Field> inside(Part Section::*part, Field Part::*field) {
  return {part, field};
}

template <class Section, class Holder, class Field>
auto& member_of(Section& section, Field Holder::*field) {
  return section.*field;
}
template <class Section, class Holder, class Part, class Field>
auto& member_of(Section& section, Inside<Holder, Part, Field> field) {
  return section.*field.part.*field.field;
}
template <class Section, class Member>
using FieldOf =
    std::remove_reference_t<decltype(member_of(std::declval<Section&>(), std::declval<Member>()))>;

// A row for the field that `member` points to: a pointer to a member of the section, or an Inside.
// get and set copy the pointers, so they work on any recipe.  Unsigned fields are passed as
// int64_t, the only integer of a KeyValue.
template <class Section, class Member>
Key key(const char* name, KeyType type, Section Recipe::*section, Member member,
        const char* meaning) {
  Key row;
  row.name = name;
  row.type = type;
  row.meaning = meaning;
  using Field = FieldOf<Section, Member>;
  using Stored = std::conditional_t<std::is_same_v<Field, uint64_t>, int64_t, Field>;
  row.get = [=](const Recipe& recipe) {
    return KeyValue(Stored(member_of(recipe.*section, member)));
  };
  row.set = [=](Recipe& recipe, const KeyValue& value) {
    member_of(recipe.*section, member) = Field(std::get<Stored>(value));
  };
  return row;
}

template <class Section, class Member>
Key integer(const char* name, Section Recipe::*section, Member member, KeyRange range,
            const char* meaning) {
  static_assert(std::is_integral_v<FieldOf<Section, Member>>);
  Key row = key(name, KeyType::kInteger, section, member, meaning);
  row.range = range;
  return row;
}

// A row for an integer in whose place a word may stand; the field then is `value`, which is outside
// of the range.
template <class Section>
Key integer_or_word(const char* name, Section Recipe::*section, int64_t Section::*field,
                    KeyRange range, const char* word, int64_t value, const char* meaning) {
  Key row = integer(name, section, field, range, meaning);
  row.words = {word};
  row.get = [=](const Recipe& recipe) {
    const int64_t number = recipe.*section.*field;
    return number == value ? KeyValue(std::string(word)) : KeyValue(number);
  };
  row.set = [=](Recipe& recipe, const KeyValue& stated) {
    const auto* number = std::get_if<int64_t>(&stated);
    recipe.*section.*field = number ? *number : value;
  };
  return row;
}

template <class Section, class Member>
Key number(const char* name, Section Recipe::*section, Member member, KeyRange range,
           const char* meaning) {
  static_assert(std::is_same_v<FieldOf<Section, Member>, double>);
  Key row = key(name, KeyType::kNumber, section, member, meaning);
  row.range = range;
  return row;
}

template <class Section, class Member>
Key boolean(const char* name, Section Recipe::*section, Member member, const char* meaning) {
  static_assert(std::is_same_v<FieldOf<Section, Member>, bool>);
  return key(name, KeyType::kBoolean, section, member, meaning);
}

template <class Section>
Key text(const char* name, Section Recipe::*section, std::string Section::*field,
         const char* meaning) {
  return key(name, KeyType::kText, section, field, meaning);
}

// A row for an id, or a list of ids.
template <class Section>
Key ids(const char* name, Section Recipe::*section, std::vector<int64_t> Section::*field,
        const char* meaning) {
  Key row = key(name, KeyType::kIds, section, field, meaning);
  row.range = kTokenId;
  return row;
}

// A row for an enum, or a boolean with names; `words` in the order of its values (false, true).
template <class Section, class Member>
Key word(const char* name, Section Recipe::*section, Member member, std::vector<std::string> words,
         const char* meaning) {
  using Enum = FieldOf<Section, Member>;
  Key row;
  row.name = name;
  row.type = KeyType::kWord;
  row.meaning = meaning;
  row.get = [=](const Recipe& recipe) {
    return KeyValue(words.at(static_cast<size_t>(member_of(recipe.*section, member))));
  };
  row.set = [=](Recipe& recipe, const KeyValue& value) {
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] == std::get<std::string>(value))
        member_of(recipe.*section, member) = static_cast<Enum>(i);
  };
  row.words = std::move(words);
  return row;
}

// Marks the row of a key that decides which tensors a model has, or their shapes.
inline Key shape(Key row) {
  row.shapes = true;
  return row;
}

// Marks the row of such a key that has no default.
inline Key required(Key row) {
  row.required = true;
  return shape(std::move(row));
}

// The rows of a model's keys (model_rows.cpp).
std::vector<Key> model_size_rows();
std::vector<Key> model_choice_rows();

}  // namespace ashlar
