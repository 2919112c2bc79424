// The keys of one config.json, with checked access.  A null value counts as absent, except where a
// number, a boolean or a word is read: there it is an error, as in transformers.  A key may be
// written under the alias of older releases.  The class remembers which keys were asked for.
//
// Errors  kData, "FILE: KEY is VALUE; expected ...".
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::models {

// Keys that begin with `name` may begin with `older` instead.
struct HfAlias {
  std::string_view name, older;
};

class HfFields {
 public:
  // `json` must outlive this; `source` names the file in messages.
  HfFields(const Json& json, std::string source);
  // The same keys with aliases, which must outlive it.
  HfFields with(std::span<const HfAlias> aliases) const;
  // The members of the object under `key`; `expected` describes it in messages.
  HfFields object(const std::string& key, const std::string& expected) const;

  const std::string& source() const { return source_; }
  // The name under which the file has `key`, which may be an alias; "" if it does not.
  std::string find(const std::string& key) const;
  bool is_null(const std::string& key) const;
  bool has(const std::string& key) const { return !find(key).empty(); }
  const Json& at(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) const;
  double positive(const std::string& key) const;
  double positive_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  // Fails unless the key is absent or has this value.
  void only(const std::string& key, const Json& value, const std::string& why) const;
  // Counts the key as one that was not asked for, because its value changes nothing.
  void not_followed(const std::string& key) const;
  // The same, unless the value is that one.
  void not_followed_unless(const std::string& key, const Json& neutral) const;
  // Fails for null, where it does not stand for absence.
  void require_not_null(const std::string& key, const std::string& expected) const;

  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

  // The keys of the file, and of its objects that were opened ("rope_scaling.beta_fast"), that have
  // a value and were not asked for.
  std::vector<std::string> unasked() const;

 private:
  struct Asked;
  HfFields(const Json& json, std::string source, std::string prefix, std::shared_ptr<Asked> asked);
  std::vector<std::string> spellings(const std::string& key) const;

  const Json& json_;
  std::string source_, prefix_;
  std::span<const HfAlias> aliases_{};
  std::shared_ptr<Asked> asked_;
};

// Parses JSON as Python's json module does: NaN, Infinity and -Infinity are values.  They become
// text, so that no number here can be one of them.
Json parse_python_json(std::string_view text, const std::string& source);

}  // namespace ashlar::models
