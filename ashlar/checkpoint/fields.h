// Typed access to members of an untrusted JSON object; every failure is kCorrupt and names the key.
// Includes the full JSON header: for .cpp files only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "ashlar/checkpoint/raise.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {

class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
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
  const std::string& text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail("{} is {}; expected a string", key, shown(value));
    return value.get_ref<const std::string&>();
  }
  Fields object(const char* key) const { return Fields(at(key), place_ + ": " + key); }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    raise(ErrorKind::kCorrupt, "{}: {}", place_, fmt::format(format, std::forward<Args>(args)...));
  }
  // A short form of a value for messages.
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

 private:
  const Json& object_;
  std::string place_;
};

}  // namespace ashlar::checkpoint
