// Helpers of the families' readers of config.json: bounds, sizes that remember which key stated
// them, ids of special tokens.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/models/hf/fields.h"

namespace ashlar::models {

// Bounds that keep every product of sizes inside int64; far above any real model.
inline constexpr int64_t kMaxSize = int64_t(1) << 24;
inline constexpr int64_t kMaxHeads = int64_t(1) << 16;
inline constexpr int64_t kMaxExperts = int64_t(1) << 12;
inline constexpr int64_t kMaxLayers = int64_t(1) << 16;
inline constexpr int64_t kMaxPositions = INT32_MAX;

// Reads sizes that exist under several keys, and remembers which key it was.
struct SizeReader {
  const HfFields& fields;
  std::map<std::string, std::string>& keys;

  int64_t scalar(const std::string& native, const std::string& key, int64_t high) {
    keys[native] = fields.has(key) ? fields.find(key) : key;  // find(): the alias that is there
    return fields.integer(key, 1, high);
  }

  // A scalar, or the one non-zero value of a list with an entry per sub-layer.
  int64_t uniform(const std::string& native, const std::string& key, int64_t high) {
    if (!fields.has(key) || !fields.at(key).is_array()) return scalar(native, key, high);
    keys[native] = fields.find(key);
    const std::string expected = fmt::format(
        "a list with one non-zero integer up to {}, the same wherever it is not 0", high);
    int64_t found = 0;
    for (const Json& entry : fields.at(key)) {
      const auto value = integer_of(entry);
      if (!value || *value < 0 || *value > high) fields.fail(key, expected);
      if (*value != 0 && found != 0 && *value != found) fields.fail(key, expected);
      if (*value != 0) found = *value;
    }
    if (found == 0) fields.fail(key, expected);
    return found;
  }

  // The first of `names` that the file has; releases state it under others too.
  int64_t first(const std::string& native, const std::vector<std::string>& names, int64_t high) {
    std::string found;
    for (const std::string& key : names)
      if (fields.has(key) && found.empty()) found = key;
    if (!found.empty()) return uniform(native, found, high);
    ASHLAR_FAIL(kData, "{}: {} is missing; expected an integer from 1 to {}", fields.source(),
                fmt::join(names, " or "), high);
  }
};

// The id of a special token; null is none, -1.
inline int64_t token_id(const HfFields& fields, const std::string& key, int64_t fallback) {
  if (fields.is_null(key)) return -1;
  if (!fields.has(key)) return fallback;
  const auto id = integer_of(fields.at(key));
  if (!id || *id < -1 || *id > kMaxSize) fields.fail(key, "the id of a token, or null for none");
  return *id;
}

// The ids of a special token that may have several: an id, a list, or null for none.  Numbers below
// 0 are left out.
inline std::vector<int64_t> token_ids(const HfFields& fields, const std::string& key,
                                      std::vector<int64_t> fallback) {
  if (fields.is_null(key)) return {};
  if (!fields.has(key)) return fallback;
  const Json& value = fields.at(key);
  std::vector<int64_t> ids;
  for (const Json& each : value.is_array() ? value : Json::array({value})) {
    const auto id = integer_of(each);
    if (!id || *id > INT32_MAX)
      fields.fail(key, "the id of a token, a list of such ids, or null for none");
    if (*id >= 0 && std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
  }
  return ids;
}

}  // namespace ashlar::models
