#include "ashlar/checkpoint/hf_fields.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

std::vector<std::string> spellings(const std::string& key) {
  if (key == "rope_theta") return {key, "rotary_base"};
  if (key == "partial_rotary_factor") return {key, "rope_pct"};
  if (key.starts_with("zaya_")) return {key, "smoe_" + key.substr(5)};
  return {key};
}

}  // namespace

HfFields::HfFields(const Json& json, std::string source) : json_(json), source_(std::move(source)) {
  ASHLAR_REQUIRE(json_.is_object(), kData,
                 "{}: the top level is {}; expected a JSON object as in a Hugging Face config.json",
                 source_, json_.type_name());
}

std::string HfFields::find(const std::string& key) const {
  std::string found;
  for (const std::string& name : spellings(key)) {
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

int64_t HfFields::integer(const std::string& key, int64_t low, int64_t high) const {
  const auto value = has(key) ? integer_of(at(key)) : std::nullopt;
  if (!value || *value < low || *value > high)
    fail(key, fmt::format("an integer from {} to {}", low, high));
  return *value;
}

int64_t HfFields::integer_or(const std::string& key, int64_t fallback, int64_t low,
                             int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double HfFields::positive_or(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_number() || !(at(key).get<double>() > 0)) fail(key, "a number above 0");
  return at(key).get<double>();
}

void HfFields::only(const std::string& key, const Json& value, const std::string& why) const {
  if (has(key) && at(key) != value) fail(key, fmt::format("{}: {}", value.dump(), why));
}

}  // namespace ashlar::checkpoint
