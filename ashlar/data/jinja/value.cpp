#include "ashlar/data/jinja/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace ashlar::data::jinja {
namespace {

bool lists_equal(const ListValue& a, const ListValue& b) {
  return a.kind == b.kind &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), is_equal);
}

bool dicts_equal(const DictValue& a, const DictValue& b) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = find(b, item.first);
           return other && is_equal(item.second, *other);
         });
}

std::string_view list_type_name(ListValue::Kind kind) {
  switch (kind) {
    case ListValue::Kind::kList:
      return "list";
    case ListValue::Kind::kTuple:
      return "tuple";
    case ListValue::Kind::kView:
      return "dict_items";
    case ListValue::Kind::kRange:
      return "range";
    case ListValue::Kind::kGenerator:
      return "generator";
  }
  return "list";
}

}  // namespace

const std::string* Value::string() const {
  const auto* text = get_if<StringValue>();
  return text ? text->bytes.get() : nullptr;
}

const ListValue* Value::list() const {
  const auto* list = get_if<std::shared_ptr<const ListValue>>();
  return list ? list->get() : nullptr;
}

const DictValue* Value::dict() const {
  const auto* dict = get_if<std::shared_ptr<const DictValue>>();
  return dict ? dict->get() : nullptr;
}

Value make_string(std::string bytes) {
  return Value(StringValue{std::make_shared<const std::string>(std::move(bytes))});
}

Value make_undefined(std::string message) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(message))});
}

std::string_view type_name(const Value& value) {
  if (const ListValue* list = value.list()) return list_type_name(list->kind);
  if (value.is<Undefined>()) return "Undefined";
  if (value.is<None>()) return "NoneType";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.string()) return "str";
  if (value.dict()) return "dict";
  if (value.is<std::shared_ptr<const LoopValue>>()) return "LoopContext";
  if (value.is<NamespaceValue*>()) return "Namespace";
  if (value.is<const MacroValue*>()) return "Macro";
  return "function";
}

size_t weight_of(const Value& value) {
  if (const ListValue* list = value.list()) return list->weight;
  if (const DictValue* dict = value.dict()) return dict->weight;
  const std::string* text = value.string();
  return 1 + (text ? text->size() / 64 : 0);
}

bool is_true(const Value& value) {
  if (const ListValue* list = value.list())
    return list->kind == ListValue::Kind::kGenerator || !list->items.empty();
  if (const DictValue* dict = value.dict()) return !dict->items.empty();
  if (const std::string* text = value.string()) return !text->empty();
  if (const bool* flag = value.get_if<bool>()) return *flag;
  if (const int64_t* number = value.get_if<int64_t>()) return *number != 0;
  if (const double* number = value.get_if<double>()) return *number != 0;
  return !value.is<Undefined>() && !value.is<None>();
}

const int64_t* integer_of(const Value& value, int64_t& held) {
  if (const bool* flag = value.get_if<bool>()) held = *flag;
  if (const int64_t* number = value.get_if<int64_t>()) held = *number;
  return value.is<bool>() || value.is<int64_t>() ? &held : nullptr;
}

bool number_of(const Value& value, double& number) {
  int64_t held = 0;
  if (const double* real = value.get_if<double>()) return number = *real, true;
  if (integer_of(value, held)) return number = static_cast<double>(held), true;
  return false;
}

bool is_equal(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (integer_of(a, i) && integer_of(b, j)) return i == j;
  double x = 0, y = 0;
  if (number_of(a, x) && number_of(b, y)) return x == y;
  if (a.string() && b.string()) return *a.string() == *b.string();
  if (a.list() && b.list()) return a.list() == b.list() || lists_equal(*a.list(), *b.list());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || dicts_equal(*a.dict(), *b.dict());
  if (const auto* space = a.get_if<NamespaceValue*>())
    return b.is<NamespaceValue*>() && *space == *b.get_if<NamespaceValue*>();
  if (const auto* macro = a.get_if<const MacroValue*>())
    return b.is<const MacroValue*>() && *macro == *b.get_if<const MacroValue*>();
  return (a.is<None>() && b.is<None>()) || (a.is<Undefined>() && b.is<Undefined>());
}

const Value* find(const DictValue& dict, const Value& key) {
  for (const auto& [name, value] : dict.items)
    if (is_equal(name, key)) return &value;
  return nullptr;
}

const Value* find(const DictValue& dict, std::string_view key) {
  for (const auto& [name, value] : dict.items)
    if (const std::string* text = name.string(); text && *text == key) return &value;
  return nullptr;
}

std::string repr_of(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  // The shortest digits, as d.ddde+XX; Python writes an exponent below -4 and from 16 on.
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string digits(buffer.data(), end);
  const size_t mark = digits.find('e');
  const int exponent = std::stoi(digits.substr(mark + 1));
  if (number != 0 && (exponent < -4 || exponent >= 16)) return digits;
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::fixed)
          .ptr;
  const std::string text(buffer.data(), fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace ashlar::data::jinja
