// The methods of Python's strings, dictionaries and lists.
#include <algorithm>
#include <array>

#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/jinja/python_text.h"
#include "ashlar/data/jinja/rendering.h"

namespace ashlar::data::jinja {
namespace {

struct MethodCall {
  Rendering& rendering;
  std::string_view name;
  const Value& object;
  const Arguments& arguments;

  const std::string& self() const { return *object.string(); }
  const std::string& string(const Value& value) const {
    return string_argument(rendering, value, name);
  }
  // Methods of strings and lists take no arguments by name, unless they say so.
  const std::vector<Value>& values(size_t least, size_t most) const {
    const size_t count = arguments.values.size();
    if (!arguments.named.empty())
      rendering.fail("{} has no parameter '{}'", name, printable(arguments.named[0].first));
    if (count < least || count > most)
      rendering.fail("{} takes {} to {} arguments, not {}", name, least, most, count);
    return arguments.values;
  }
  int64_t integer(const Value& value) const { return integer_argument(rendering, value, name); }
};

Value strip_method(const MethodCall& call) {
  const std::vector<Value>& given = call.values(0, 1);
  const Side side = call.name == "lstrip"   ? Side::kLeft
                    : call.name == "rstrip" ? Side::kRight
                                            : Side::kBoth;
  std::optional<std::string_view> set;
  if (!given.empty() && !given[0].is<None>()) set = call.string(given[0]);
  if (set) call.rendering.charge(call.self().size() * (1 + set->size() / 8));
  return call.rendering.text(std::string(strip(call.self(), side, set)));
}

Value split_method(const MethodCall& call) {
  const Parameters given(call.rendering, call.name, call.arguments, {"sep", "maxsplit"});
  const int64_t most = given[1] ? call.integer(*given[1]) : -1;
  const bool from_right = call.name == "rsplit";
  if (!given[0] || given[0]->is<None>()) {
    call.rendering.charge(call.self().size());
    if (from_right && most >= 0)
      call.rendering.fail("rsplit at white space with a limit is not supported");
    return call.rendering.texts(split_space(call.self(), most));
  }
  const std::string& separator = call.string(*given[0]);
  if (separator.empty()) call.rendering.fail("{}: the separator is empty", call.name);
  call.rendering.charge_search(call.self(), separator);
  return call.rendering.texts(from_right ? rsplit_text(call.self(), separator, most)
                                         : split_text(call.self(), separator, most));
}

Value splitlines(const MethodCall& call) {
  call.values(0, 0);
  return call.rendering.texts(split_lines(call.self()));
}

Value affix_test(const MethodCall& call) {
  const Value& given = call.values(1, 1)[0];
  const auto holds = [&](const Value& affix) {
    const std::string& text = call.string(affix);
    call.rendering.charge(text.size());
    return call.name == "startswith" ? call.self().starts_with(text) : call.self().ends_with(text);
  };
  const ListValue* several = given.list();
  if (several && several->kind == ListValue::Kind::kTuple)
    return Value(std::ranges::any_of(several->items, holds));
  return Value(holds(given));
}

Value remove_affix(const MethodCall& call) {
  const std::string& affix = call.string(call.values(1, 1)[0]);
  std::string text = call.self();
  if (call.name == "removeprefix" && text.starts_with(affix)) text.erase(0, affix.size());
  if (call.name == "removesuffix" && text.ends_with(affix)) text.resize(text.size() - affix.size());
  return call.rendering.text(std::move(text));
}

Value replace_method(const MethodCall& call) {
  const std::vector<Value>& given = call.values(2, 3);
  const int64_t count = given.size() > 2 ? call.integer(given[2]) : -1;
  const std::string& old = call.string(given[0]);
  call.rendering.charge_search(call.self(), old);
  const auto result = replace_text(call.self(), old, call.string(given[1]), count, size_t(1) << 28);
  if (!result) call.rendering.fail("the result of replace is too large");
  return call.rendering.text(*result);
}

Value case_method(const MethodCall& call) {
  call.values(0, 0);
  const Case wanted = call.name == "upper"   ? Case::kUpper
                      : call.name == "lower" ? Case::kLower
                      : call.name == "title" ? Case::kTitle
                                             : Case::kCapitalized;
  const auto result = with_case(call.self(), wanted);
  if (!result)
    call.rendering.fail("{}: the case of letters beyond ASCII is not supported", call.name);
  return call.rendering.text(*result);
}

Value find_method(const MethodCall& call) {
  const std::string& part = call.string(call.values(1, 1)[0]);
  call.rendering.charge_search(call.self(), part);
  const bool from_right = call.name.starts_with("r");
  const size_t at = from_right ? call.self().rfind(part) : call.self().find(part);
  if (at != std::string::npos)
    return Value(num_characters(std::string_view(call.self()).substr(0, at)));
  if (call.name.ends_with("index")) call.rendering.fail("{}: the text is not there", call.name);
  return Value(int64_t{-1});
}

Value count_method(const MethodCall& call) {
  const std::string& part = call.string(call.values(1, 1)[0]);
  call.rendering.charge_search(call.self(), part);
  return Value(count_text(call.self(), part));
}

Value join_method(const MethodCall& call) {
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(call.rendering, call.values(1, 1)[0])) {
    if (std::exchange(begun, true)) out += call.self();
    out += call.string(item);
    call.rendering.charge(call.self().size() + item.string()->size());
  }
  return call.rendering.text(std::move(out));
}

Value is_digit_method(const MethodCall& call) {
  call.values(0, 0);
  if (std::ranges::any_of(call.self(), [](char c) { return (c & 0x80) != 0; }))
    call.rendering.fail("isdigit of text beyond ASCII is not supported");
  return Value(is_digit_text(call.self()));
}

Value is_space_method(const MethodCall& call) {
  call.values(0, 0);
  return Value(is_space_text(call.self()));
}

// str.format with the fields {}, {0} and {name}; no attributes, conversions or formats.
Value format_method(const MethodCall& call) {
  const std::string& text = call.self();
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out += text[at++];
      continue;
    }
    const size_t end = text.find('}', at);
    if (text[at] == '}' || end == std::string::npos)
      call.rendering.fail("format: a single '{}'", text[at]);
    const std::string field = text.substr(at + 1, end - at - 1);
    at = end;
    const auto& named = call.arguments.named;
    const auto found = std::ranges::find(named, field, &std::pair<std::string, Value>::first);
    size_t index = field.empty() ? next++ : call.arguments.values.size();
    if (is_digit_text(field) && field.size() < 4) index = std::stoul(field);
    if (found == named.end() && index >= call.arguments.values.size())
      call.rendering.fail("format: the field '{{{}}}' is not supported or not given",
                          printable(field));
    out +=
        str_of(call.rendering, found != named.end() ? found->second : call.arguments.values[index]);
  }
  return call.rendering.text(std::move(out));
}

Value partition(const MethodCall& call) {
  const std::string& separator = call.string(call.values(1, 1)[0]);
  if (separator.empty()) call.rendering.fail("{}: the separator is empty", call.name);
  const std::string& text = call.self();
  call.rendering.charge_search(text, separator);
  const bool from_right = call.name == "rpartition";
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts.assign(3, make_string(""));
    parts[from_right ? 2 : 0] = call.object;
  } else {
    parts = {call.rendering.text(text.substr(0, at)), make_string(separator),
             call.rendering.text(text.substr(at + separator.size()))};
  }
  return call.rendering.list(std::move(parts), ListValue::Kind::kTuple);
}

Value get_method(const MethodCall& call) {
  const std::vector<Value>& given = call.values(1, 2);
  const DictValue& dict = *call.object.dict();
  call.rendering.charge(dict.items.size() * weight_of(given[0]));
  if (const Value* found = find(dict, given[0])) return *found;
  return given.size() > 1 ? given[1] : Value(None{});
}

Value view_method(const MethodCall& call) {
  call.values(0, 0);
  std::vector<Value> out;
  for (const auto& [key, value] : call.object.dict()->items) {
    if (call.name == "items")
      out.push_back(call.rendering.list({key, value}, ListValue::Kind::kTuple));
    else
      out.push_back(call.name == "keys" ? key : value);
  }
  return call.rendering.list(std::move(out), ListValue::Kind::kView);
}

Value copy_method(const MethodCall& call) {
  call.values(0, 0);
  return call.object;
}

Value list_find(const MethodCall& call) {
  const Value& wanted = call.values(1, 1)[0];
  int64_t count = 0, at = 0;
  for (const Value& item : call.object.list()->items) {
    const bool same = equal(call.rendering, item, wanted);
    if (same && call.name == "index") return Value(at);
    count += same;
    ++at;
  }
  if (call.name == "index") call.rendering.fail("index: the item is not there");
  return Value(count);
}

struct NamedMethod {
  std::string_view name;
  Value (*method)(const MethodCall&);  // null: not supported
};
constexpr NamedMethod kStringMethods[] = {
    {"capitalize", case_method},
    {"count", count_method},
    {"endswith", affix_test},
    {"find", find_method},
    {"format", format_method},
    {"index", find_method},
    {"isdigit", is_digit_method},
    {"isspace", is_space_method},
    {"join", join_method},
    {"lower", case_method},
    {"lstrip", strip_method},
    {"partition", partition},
    {"removeprefix", remove_affix},
    {"removesuffix", remove_affix},
    {"replace", replace_method},
    {"rfind", find_method},
    {"rindex", find_method},
    {"rpartition", partition},
    {"rsplit", split_method},
    {"rstrip", strip_method},
    {"split", split_method},
    {"splitlines", splitlines},
    {"startswith", affix_test},
    {"strip", strip_method},
    {"title", case_method},
    {"upper", case_method},
    {"casefold", nullptr},
    {"center", nullptr},
    {"encode", nullptr},
    {"expandtabs", nullptr},
    {"format_map", nullptr},
    {"isalnum", nullptr},
    {"isalpha", nullptr},
    {"isascii", nullptr},
    {"isdecimal", nullptr},
    {"isidentifier", nullptr},
    {"islower", nullptr},
    {"isnumeric", nullptr},
    {"isprintable", nullptr},
    {"istitle", nullptr},
    {"isupper", nullptr},
    {"ljust", nullptr},
    {"maketrans", nullptr},
    {"rjust", nullptr},
    {"swapcase", nullptr},
    {"translate", nullptr},
    {"zfill", nullptr},
};
constexpr NamedMethod kDictMethods[] = {
    {"copy", copy_method},   {"get", get_method},     {"items", view_method}, {"keys", view_method},
    {"values", view_method}, {"fromkeys", nullptr},   {"clear", nullptr},     {"pop", nullptr},
    {"popitem", nullptr},    {"setdefault", nullptr}, {"update", nullptr},
};
constexpr NamedMethod kListMethods[] = {
    {"copy", copy_method}, {"count", list_find}, {"index", list_find}, {"append", nullptr},
    {"clear", nullptr},    {"extend", nullptr},  {"insert", nullptr},  {"pop", nullptr},
    {"remove", nullptr},   {"reverse", nullptr}, {"sort", nullptr},
};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

const NamedMethod* find_named(const Value& value, std::string_view name) {
  const auto in = [&](const auto& table) -> const NamedMethod* {
    const auto* found = std::ranges::find(table, name, &NamedMethod::name);
    return found == std::end(table) ? nullptr : found;
  };
  if (value.string()) return in(kStringMethods);
  if (value.dict()) return in(kDictMethods);
  const ListValue* list = value.list();
  if (!list) return nullptr;
  const bool tuple = list->kind == ListValue::Kind::kTuple;
  if (list->kind == ListValue::Kind::kList || (tuple && (name == "count" || name == "index")))
    return in(kListMethods);
  return nullptr;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  return find_named(value, name) != nullptr;
}

bool is_mutating(const Value& value, std::string_view name) {
  if (value.dict()) return std::ranges::find(kDictChanges, name) != kDictChanges.end();
  const NamedMethod* known = value.list() ? find_named(value, name) : nullptr;
  return known && !known->method;
}

Value call_method(Rendering& rendering, const MethodValue& method, const Arguments& arguments) {
  rendering.charge(8);
  const NamedMethod* known = find_named(method.object, method.name);
  if (!known || !known->method)
    rendering.fail("the method '{}' of a {} is not supported", method.name,
                   type_name(method.object));
  if (const auto* text = method.object.get_if<StringValue>(); text && text->is_safe)
    rendering.fail("the method '{}' of a string from `safe` is not supported", method.name);
  return known->method({rendering, method.name, method.object, arguments});
}

}  // namespace ashlar::data::jinja
