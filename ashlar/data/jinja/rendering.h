// The state that all operations of a rendering share, the place for messages and the budget of
// work; and Python's operations on values that need it.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/data/jinja/syntax.h"
#include "ashlar/data/jinja/value.h"

namespace ashlar::data::jinja {

class Rendering {
 public:
  // work: the units that may be spent; a unit is a byte that is made or looked at, and an operation
  // or an item of a list is several.
  Rendering(std::string name, int64_t work) : name_(std::move(name)), work_(work) {}

  SourcePlace place;  // of the operation under way

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_at(name_, place, fmt::format(format, std::forward<Args>(args)...));
  }
  void charge(size_t units);
  // For a search for `part` that may compare all of it at every place of the text.
  void charge_search(std::string_view text, std::string_view part);

  Value text(std::string bytes) {
    charge(bytes.size());
    return make_string(std::move(bytes));
  }
  Value list(std::vector<Value> items, ListValue::Kind kind = ListValue::Kind::kList);
  Value texts(const std::vector<std::string>& items);
  // The last value of a repeated key counts.
  Value dict(std::vector<std::pair<Value, Value>> items);
  // For keys that are known to differ.
  Value dict_of_unique(std::vector<std::pair<Value, Value>> items);

 private:
  template <typename Container>
  void weigh(Container& container, const Value& part);

  std::string name_;
  int64_t work_;
};

// The values of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the names of the parameters.  Fails for an unknown name, one argument too many, or
// one of the first `required` missing.
class Parameters {
 public:
  Parameters(const Rendering& rendering, std::string_view callee, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required = 0);
  // null: not given.
  const Value* operator[](size_t parameter) const { return values_[parameter]; }

 private:
  std::vector<const Value*> values_;
};

// str and repr of Python; fails for a namespace, a loop, a function and the like.
std::string str_of(Rendering& rendering, const Value& value);
std::string repr_of(Rendering& rendering, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent = {};  // of one level; nullopt: one line
  std::string item_separator = ", ", key_separator = ": ";
};
std::string json_of(Rendering& rendering, const Value& value, const JsonStyle& style);

// The items in order: of a dictionary its keys, of a string its characters.  Uses up a generator.
std::vector<Value> items_of(Rendering& rendering, const Value& value);
bool is_iterable(const Value& value);
int64_t length_of(Rendering& rendering, const Value& value);

// value.name and value[key]; a value that is undefined if there is none.
Value member_of(Rendering& rendering, const Value& value, const std::string& name);
Value item_of(Rendering& rendering, const Value& value, const Value& key);
Value slice_of(Rendering& rendering, const Value& value, std::optional<int64_t> start,
               std::optional<int64_t> stop, int64_t step);

// is_equal, charged.
bool equal(Rendering& rendering, const Value& a, const Value& b);
bool contains(Rendering& rendering, const Value& container, const Value& item);
bool is_less(Rendering& rendering, const Value& a, const Value& b);
// name: + - * / // % **
Value arithmetic(Rendering& rendering, std::string_view name, const Value& a, const Value& b);

// A string argument, an integer argument; fails with the name of the parameter.
const std::string& string_argument(const Rendering& rendering, const Value& value,
                                   std::string_view what);
int64_t integer_argument(const Rendering& rendering, const Value& value, std::string_view what);

// filters.cpp, tests.cpp, methods.cpp.  Each fails, by name, for what it does not know.
Value apply_filter(Rendering& rendering, std::string_view name, const Value& input,
                   const Arguments& arguments);
bool apply_test(Rendering& rendering, std::string_view name, const Value& input,
                const Arguments& arguments);
// Whether Python's type of the value has a method of this name.
bool has_method(const Value& value, std::string_view name);
// Whether it changes the value, which Jinja's sandbox forbids.
bool is_mutating(const Value& value, std::string_view name);
Value call_method(Rendering& rendering, const MethodValue& method, const Arguments& arguments);

}  // namespace ashlar::data::jinja
