// The keys of one config.json, with checked access.  A null value counts as absent; a key may be
// written under the alias that older releases gave it.
//
// Errors  kData, "FILE: KEY is VALUE; expected ...".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ashlar/core/json.h"

namespace ashlar::checkpoint {

class HfFields {
 public:
  // `json` must outlive this; `source` names the file in messages.
  HfFields(const Json& json, std::string source);

  const std::string& source() const { return source_; }
  // The key of the file that holds `key`, which may be written under an alias; "" if none does.
  std::string find(const std::string& key) const;
  bool is_null(const std::string& key) const;
  bool has(const std::string& key) const { return !find(key).empty(); }
  const Json& at(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) const;
  double positive_or(const std::string& key, double fallback) const;
  // The only value that the keys of this name may have, if they are there.
  void only(const std::string& key, const Json& value, const std::string& why) const;

  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

 private:
  const Json& json_;
  std::string source_;
};

}  // namespace ashlar::checkpoint
