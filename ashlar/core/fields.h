// Typed access to the members of an untrusted JSON object: every failure names the place and the key.
// Includes the full JSON header: for .cpp files only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "ashlar/core/json.h"

namespace ashlar {

class Fields {
 public:
  // place: what messages begin with, "FILE" or "FILE: member".  The object must outlive this.
  Fields(const Json& object, std::string place, ErrorKind kind = ErrorKind::kCorrupt)
      : object_(object), place_(std::move(place)), kind_(kind) {
    if (!object.is_object()) fail("found {}; expected an object", shown(object));
  }
  bool has(const char* key) const { return object_.contains(key); }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail("key '{}' is missing", key);
    return *found;
  }
  int64_t count(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(INT64_MAX))
      fail("{} is {}; expected an integer from 0 to 2^63-1", key, shown(value));
    return value.get<int64_t>();
  }
  int64_t integer(const char* key, int64_t min, int64_t max) const {
    const Json& value = at(key);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
    if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max)
      fail("{} is {}; expected an integer from {} to {}", key, shown(value), min, max);
    return value.get<int64_t>();
  }
  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number()) fail("{} is {}; expected a number", key, shown(value));
    return value.get<double>();
  }
  bool boolean(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail("{} is {}; expected true or false", key, shown(value));
    return value.get<bool>();
  }
  const std::string& text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail("{} is {}; expected a string", key, shown(value));
    return value.get_ref<const std::string&>();
  }
  const Json& array(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail("{} is {}; expected a list", key, shown(value));
    return value;
  }
  Fields object(const char* key) const { return Fields(at(key), place_ + ": " + key, kind_); }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(kind_,
                fmt::format("{}: {}", place_, fmt::format(format, std::forward<Args>(args)...)));
  }
  // A short form of a value for messages.
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

 private:
  const Json& object_;
  std::string place_;
  ErrorKind kind_;
};

}  // namespace ashlar
