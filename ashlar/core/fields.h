// Typed access to the members of an untrusted JSON object; every failure names the place and the
// key.  Includes the full JSON header, so only .cpp files should include it.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar {

class Fields {
 public:
  // place: the beginning of messages, "FILE" or "FILE: member".  The object must outlive this.
  Fields(const Json& object, std::string place, ErrorKind kind = ErrorKind::kCorrupt)
      : object_(object), place_(std::move(place)), kind_(kind) {
    if (!object.is_object()) fail("found {}; expected an object", shown(object));
  }
  Fields(Json&&, std::string, ErrorKind = ErrorKind::kCorrupt) = delete;
  bool has(std::string_view key) const { return object_.contains(key); }
  const Json& at(std::string_view key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail("key '{}' is missing", key);
    return *found;
  }
  int64_t integer(std::string_view key, int64_t min, int64_t max) const {
    return integer_in(key, "is", at(key), min, max);
  }
  int64_t count(std::string_view key) const { return integer(key, 0, INT64_MAX); }
  std::vector<int64_t> counts(std::string_view key) const {
    std::vector<int64_t> values;
    for (const Json& item : array(key))
      values.push_back(integer_in(key, "holds", item, 0, INT64_MAX));
    return values;
  }
  double number(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_number()) fail("{} is {}; expected a number", key, shown(value));
    return value.get<double>();
  }
  bool boolean(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail("{} is {}; expected true or false", key, shown(value));
    return value.get<bool>();
  }
  const std::string& text(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail("{} is {}; expected a string", key, shown(value));
    return value.get_ref<const std::string&>();
  }
  uint64_t hex(std::string_view key, size_t digits) const {
    return hex_in(key, "is", at(key), digits);
  }
  std::vector<uint64_t> hexes(std::string_view key, size_t digits) const {
    std::vector<uint64_t> values;
    for (const Json& item : array(key)) values.push_back(hex_in(key, "holds", item, digits));
    return values;
  }
  const Json& array(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail("{} is {}; expected a list", key, shown(value));
    return value;
  }
  Fields object(std::string_view key) const {
    return Fields(at(key), fmt::format("{}: {}", place_, key), kind_);
  }
  // Refuses all other keys.
  void only(std::initializer_list<std::string_view> keys) const {
    for (const auto& item : object_.items())
      if (std::find(keys.begin(), keys.end(), item.key()) == keys.end())
        fail("unknown key '{}'; expected {}", item.key(), fmt::join(keys, ", "));
  }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(kind_,
                fmt::format("{}: {}", place_, fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  int64_t integer_in(std::string_view key, std::string_view verb, const Json& value, int64_t min,
                     int64_t max) const {
    const auto number = integer_of(value);
    if (!number || *number < min || *number > max)
      fail("{} {} {}; expected an integer from {} to {}", key, verb, shown(value), min,
           max == INT64_MAX ? "2^63-1" : fmt::to_string(max));
    return *number;
  }
  uint64_t hex_in(std::string_view key, std::string_view verb, const Json& value,
                  size_t digits) const {
    const auto number =
        value.is_string() ? parse_hex(value.get_ref<const std::string&>(), digits) : std::nullopt;
    if (!number)
      fail("{} {} {}; expected {} lower-case hex digits", key, verb, shown(value), digits);
    return *number;
  }
  const Json& object_;
  std::string place_;
  ErrorKind kind_;
};

}  // namespace ashlar
