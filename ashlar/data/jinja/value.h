// The values of a template, with Python's meaning of truth, equality, order and text.
//
// A value is cheap to copy: strings, lists and dictionaries are shared and never change.  Only a
// namespace changes; the renderer owns it, as it owns macros, so values form no cycles.
//
// Source  Python 3.11; Jinja2 3.1.6 for undefined values.
// Limits  Integers have 64 bits.  Lists and dictionaries nest at most kMaxValueDepth deep.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ashlar::data::jinja {

inline constexpr int kMaxValueDepth = 100;

class Value;
struct ListValue;
struct DictValue;
struct MethodValue;
struct LoopValue;
struct NamespaceValue;  // render.h
struct MacroValue;      // render.h

// A name or a member that is not there.  Most uses of it raise `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;  // "'x' is undefined"
};
struct None {};
struct StringValue {
  std::shared_ptr<const std::string> bytes;  // UTF-8
  bool is_safe = false;                      // made by the filter `safe`
};
struct FunctionValue {  // a global function, by its name
  std::string_view name;
};

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, StringValue,
                               std::shared_ptr<const ListValue>, std::shared_ptr<const DictValue>,
                               std::shared_ptr<const MethodValue>, std::shared_ptr<const LoopValue>,
                               NamespaceValue*, const MacroValue*, FunctionValue>;
  Value() : data_(None{}) {}
  template <typename T>
  requires std::is_constructible_v<Variant, T>
  explicit Value(T&& data) : data_(std::forward<T>(data)) {}

  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  // The bytes of a string; null if the value is none.
  const std::string* string() const;
  const ListValue* list() const;
  const DictValue* dict() const;

 private:
  Variant data_;
};

// A list, tuple or the like; its kind in Python decides what may be done with it.
struct ListValue {
  enum class Kind : uint8_t { kList, kTuple, kView, kRange, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  int depth = 1;
  size_t weight = 1;             // weight_of
  mutable bool used_up = false;  // a generator gives its items once
};

struct DictValue {
  std::vector<std::pair<Value, Value>> items;  // in the order in which keys were first set
  int depth = 1;
  size_t weight = 1;  // weight_of
};

struct MethodValue {
  Value object;
  std::string name;
};

struct LoopValue {
  std::shared_ptr<const ListValue> items;
  int64_t index0 = 0, depth = 1;
};

Value make_string(std::string bytes);
Value make_undefined(std::string message);

// Python's name of the type: "str", "dict object" is for members only.
std::string_view type_name(const Value& value);
// The cost of looking at all of a value: its parts, and its strings by 64 bytes.  A part that is
// shared counts wherever it stands.
size_t weight_of(const Value& value);
bool is_true(const Value& value);
bool is_equal(const Value& a, const Value& b);
// null: the dictionary has no such key.
const Value* find(const DictValue& dict, const Value& key);
const Value* find(const DictValue& dict, std::string_view key);

// The integer of an int or a bool; the number of these or a float.
const int64_t* integer_of(const Value& value, int64_t& held);
bool number_of(const Value& value, double& number);

// Python's repr of a float: the shortest digits that read back the same.
std::string repr_of(double number);

}  // namespace ashlar::data::jinja
