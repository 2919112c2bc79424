#include "ashlar/models/hf/fields.h"

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/error.h"

namespace ashlar::models {

struct HfFields::Asked {
  std::set<std::string> keys;  // with the names of their objects
  struct Object {
    std::string prefix;
    const Json* json;
  };
  std::vector<Object> objects;  // that were opened
};

HfFields::HfFields(const Json& json, std::string source, std::string prefix,
                   std::shared_ptr<Asked> asked)
    : json_(json),
      source_(std::move(source)),
      prefix_(std::move(prefix)),
      asked_(std::move(asked)) {
  asked_->objects.push_back({prefix_, &json_});
}

HfFields::HfFields(const Json& json, std::string source)
    : HfFields(json, std::move(source), "", std::make_shared<Asked>()) {
  ASHLAR_REQUIRE(json_.is_object(), kData,
                 "{}: the top level is {}; expected a JSON object as in a Hugging Face config.json",
                 source_, json_.type_name());
}

HfFields HfFields::with(std::span<const HfAlias> aliases) const {
  HfFields other = *this;
  other.aliases_ = aliases;
  return other;
}

HfFields HfFields::object(const std::string& key, const std::string& expected) const {
  if (!has(key) || !at(key).is_object()) fail(key, expected);
  return {at(key), fmt::format("{}: {}", source_, key), prefix_ + key + ".", asked_};
}

std::vector<std::string> HfFields::spellings(const std::string& key) const {
  std::vector<std::string> names{key};
  for (const HfAlias& alias : aliases_)
    if (key.starts_with(alias.name))
      names.push_back(fmt::format("{}{}", alias.older, key.substr(alias.name.size())));
  return names;
}

std::string HfFields::find(const std::string& key) const {
  std::string found;
  for (const std::string& name : spellings(key)) {
    asked_->keys.insert(prefix_ + name);
    const auto at = json_.find(name);
    if (at == json_.end() || at->is_null()) continue;
    ASHLAR_REQUIRE(found.empty() || json_.at(found) == *at, kData,
                   "{}: {} is {} but its other name {} is {}; keep one of them", source_, found,
                   shown(json_.at(found)), name, shown(*at));
    if (found.empty()) found = name;
  }
  return found;
}

bool HfFields::is_null(const std::string& key) const {
  return json_.contains(key) && json_.at(key).is_null();
}

const Json& HfFields::at(const std::string& key) const {
  return json_.at(find(key));
}

void HfFields::fail(const std::string& key, const std::string& expected) const {
  const std::string name = find(key);
  if (name.empty()) ASHLAR_FAIL(kData, "{}: {} is missing; expected {}", source_, key, expected);
  ASHLAR_FAIL(kData, "{}: {} is {}; expected {}", source_, name, shown(json_.at(name)), expected);
}

void HfFields::require_not_null(const std::string& key, const std::string& expected) const {
  ASHLAR_REQUIRE(has(key) || !is_null(key), kData, "{}: {} is null; expected {}, or no such key",
                 source_, key, expected);
}

int64_t HfFields::integer(const std::string& key, int64_t low, int64_t high) const {
  const auto value = has(key) ? integer_of(at(key)) : std::nullopt;
  if (!value || *value < low || *value > high)
    fail(key, fmt::format("an integer from {} to {}", low, high));
  return *value;
}

int64_t HfFields::integer_or(const std::string& key, int64_t fallback, int64_t low,
                             int64_t high) const {
  require_not_null(key, fmt::format("an integer from {} to {}", low, high));
  return has(key) ? integer(key, low, high) : fallback;
}

double HfFields::positive(const std::string& key) const {
  if (!has(key) || !at(key).is_number() || !(at(key).get<double>() > 0))
    fail(key, "a number above 0");
  return at(key).get<double>();
}

double HfFields::positive_or(const std::string& key, double fallback) const {
  require_not_null(key, "a number above 0");
  return has(key) ? positive(key) : fallback;
}

bool HfFields::boolean_or(const std::string& key, bool fallback) const {
  require_not_null(key, "true or false");
  if (!has(key)) return fallback;
  if (!at(key).is_boolean()) fail(key, "true or false");
  return at(key).get<bool>();
}

void HfFields::only(const std::string& key, const Json& value, const std::string& why) const {
  if (has(key) && at(key) != value) fail(key, fmt::format("{}: {}", value.dump(), why));
}

void HfFields::not_followed(const std::string& key) const {
  asked_->keys.erase(prefix_ + find(key));
}

void HfFields::not_followed_unless(const std::string& key, const Json& neutral) const {
  if (has(key) && at(key) != neutral) not_followed(key);
}

std::vector<std::string> HfFields::unasked() const {
  std::vector<std::string> names;
  for (const auto& [prefix, json] : asked_->objects)
    for (const auto& [key, value] : json->items())
      if (!value.is_null() && !asked_->keys.contains(prefix + key)) names.push_back(prefix + key);
  return names;
}

Json parse_python_json(std::string_view text, const std::string& source) {
  std::string strict;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_text && text[i] == '\\' && i + 1 < text.size()) {
      strict += text.substr(i++, 2);
      continue;
    }
    if (text[i] == '"') in_text = !in_text;
    size_t length = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (!in_text && text.substr(i).starts_with(word)) length = word.size();
    if (length == 0) {
      strict += text[i];
      continue;
    }
    strict += fmt::format("\"{}\"", text.substr(i, length));
    i += length - 1;
  }
  return parse_json(strict, source, ErrorKind::kData);
}

}  // namespace ashlar::models
