// The filters, in alphabetical order, with Jinja's parameters.  `tojson` is that of transformers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "ashlar/core/text.h"
#include "ashlar/data/jinja/python_text.h"
#include "ashlar/data/jinja/rendering.h"

namespace ashlar::data::jinja {
namespace {

using ListKind = ListValue::Kind;

struct FilterCall {
  Rendering& rendering;
  std::string_view name;
  const Value& input;
  const Arguments& arguments;

  std::string text() const { return str_of(rendering, input); }
  Parameters parameters(std::initializer_list<std::string_view> names, size_t required = 0) const {
    return Parameters(rendering, name, arguments, names, required);
  }
  const std::string& string(const Value& value) const {
    return string_argument(rendering, value, name);
  }
};

using Filter = Value (*)(const FilterCall&);

Value generator(const FilterCall& call, std::vector<Value> items) {
  return call.rendering.list(std::move(items), ListKind::kGenerator);
}

// The value at a path of members and indices: "function.name".
Value attribute(const FilterCall& call, const Value& object, const Value& path) {
  if (path.is<int64_t>()) return item_of(call.rendering, object, path);
  Value value = object;
  for (const std::string& part : split_text(call.string(path), ".", -1)) {
    int64_t index = 0;
    const char* end = part.data() + part.size();
    const bool number = is_digit_text(part) && std::from_chars(part.data(), end, index).ptr == end;
    value = item_of(call.rendering, value, number ? Value(index) : make_string(part));
  }
  return value;
}

Value cased(const FilterCall& call, const Value& input, Case wanted) {
  const std::string text = str_of(call.rendering, input);
  const auto result = with_case(text, wanted);
  if (!result)
    call.rendering.fail("{}: the case of letters beyond ASCII is not supported", call.name);
  return call.rendering.text(*result);
}

Value abs_filter(const FilterCall& call) {
  call.parameters({});
  double number = 0;
  if (const auto* whole = call.input.get_if<int64_t>()) {
    if (*whole == std::numeric_limits<int64_t>::min())
      call.rendering.fail("abs needs more than 64 bits");
    return Value(*whole < 0 ? -*whole : *whole);
  }
  if (!number_of(call.input, number))
    call.rendering.fail("abs of a {} is not supported", type_name(call.input));
  return Value(std::abs(number));
}

Value capitalize(const FilterCall& call) {
  call.parameters({});
  return cased(call, call.input, Case::kCapitalized);
}

Value default_filter(const FilterCall& call) {
  const Parameters given = call.parameters({"default_value", "boolean"});
  const bool falsy = given[1] && is_true(*given[1]);
  if (!call.input.is<Undefined>() && !(falsy && !is_true(call.input))) return call.input;
  return given[0] ? *given[0] : make_string("");
}

// The key by which sort and the like compare: of text in lower case, unless case counts.
Value sort_key(const FilterCall& call, const Value& value, bool case_sensitive) {
  return value.string() && !case_sensitive ? cased(call, value, Case::kLower) : value;
}

std::vector<Value> sorted(const FilterCall& call, std::vector<Value> items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return reverse ? is_less(call.rendering, keys[b], keys[a])
                   : is_less(call.rendering, keys[a], keys[b]);
  });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(std::move(items[i]));
  return out;
}

Value dictsort(const FilterCall& call) {
  const Parameters given = call.parameters({"case_sensitive", "by", "reverse"});
  const DictValue* dict = call.input.dict();
  if (!dict) call.rendering.fail("dictsort of a {} is not supported", type_name(call.input));
  const bool by_value = given[1] && call.string(*given[1]) == "value";
  std::vector<Value> items, keys;
  for (const auto& [key, value] : dict->items) {
    keys.push_back(sort_key(call, by_value ? value : key, given[0] && is_true(*given[0])));
    items.push_back(call.rendering.list({key, value}, ListKind::kTuple));
  }
  return call.rendering.list(sorted(call, std::move(items), keys, given[2] && is_true(*given[2])));
}

Value first(const FilterCall& call) {
  call.parameters({});
  const std::vector<Value> items = items_of(call.rendering, call.input);
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

Value float_filter(const FilterCall& call) {
  const Parameters given = call.parameters({"default"});
  double number = 0;
  if (number_of(call.input, number)) return Value(number);
  if (const std::string* text = call.input.string()) {
    const std::string_view digits = strip(*text, Side::kBoth);
    const char* end = digits.data() + digits.size();
    if (const auto read = std::from_chars(digits.data(), end, number);
        read.ec == std::errc{} && read.ptr == end)
      return Value(number);
  }
  return given[0] ? *given[0] : Value(0.0);
}

Value indent(const FilterCall& call) {
  const Parameters given = call.parameters({"width", "first", "blank"});
  const bool blank = given[2] && is_true(*given[2]);
  std::string by(4, ' ');
  if (given[0] && given[0]->string()) by = *given[0]->string();
  if (given[0] && !given[0]->string()) {
    const int64_t width = integer_argument(call.rendering, *given[0], "indent: width");
    if (width > 10000) call.rendering.fail("indent: the width {} is above 10000", width);
    by.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  }
  const std::vector<std::string> lines = split_lines(call.text() + "\n");
  call.rendering.charge(by.size() * lines.size());
  std::string out = given[1] && is_true(*given[1]) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += by;
    out += lines[i];
  }
  return call.rendering.text(std::move(out));
}

Value int_filter(const FilterCall& call) {
  const Parameters given = call.parameters({"default"});
  const Value other = given[0] ? *given[0] : Value(int64_t{0});
  int64_t whole = 0;
  double number = 0;
  if (integer_of(call.input, whole)) return Value(whole);
  if (const std::string* text = call.input.string()) {
    std::string_view digits = strip(*text, Side::kBoth);
    if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
    const char* end = digits.data() + digits.size();
    if (const auto read = std::from_chars(digits.data(), end, whole);
        read.ec == std::errc{} && read.ptr == end)
      return Value(whole);
    const auto read = std::from_chars(digits.data(), end, number);
    if (read.ec != std::errc{} || read.ptr != end) return other;
  } else if (!number_of(call.input, number)) {
    return other;
  }
  if (!(std::abs(number) < 0x1p63)) return other;
  return Value(static_cast<int64_t>(number));
}

Value items_filter(const FilterCall& call) {
  call.parameters({});
  if (call.input.is<Undefined>()) return generator(call, {});
  const DictValue* dict = call.input.dict();
  if (!dict) call.rendering.fail("items of a {} is not supported", type_name(call.input));
  std::vector<Value> items;
  for (const auto& [key, value] : dict->items)
    items.push_back(call.rendering.list({key, value}, ListKind::kTuple));
  return generator(call, std::move(items));
}

Value join(const FilterCall& call) {
  const Parameters given = call.parameters({"d", "attribute"});
  const std::string between = given[0] ? str_of(call.rendering, *given[0]) : "";
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(call.rendering, call.input)) {
    if (std::exchange(begun, true)) out += between;
    out += str_of(call.rendering, given[1] ? attribute(call, item, *given[1]) : item);
    call.rendering.charge(between.size());
  }
  return call.rendering.text(std::move(out));
}

Value last(const FilterCall& call) {
  call.parameters({});
  if (const ListValue* list = call.input.list(); list && list->kind == ListKind::kGenerator)
    call.rendering.fail("last of a generator is not supported");
  const std::vector<Value> items = items_of(call.rendering, call.input);
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

Value length(const FilterCall& call) {
  call.parameters({});
  return Value(length_of(call.rendering, call.input));
}

Value list_filter(const FilterCall& call) {
  call.parameters({});
  return call.rendering.list(items_of(call.rendering, call.input));
}

Value lower(const FilterCall& call) {
  call.parameters({});
  return cased(call, call.input, Case::kLower);
}

// The arguments behind the first `count`.
Arguments after(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.values.erase(rest.values.begin(), rest.values.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

Value map_filter(const FilterCall& call) {
  std::vector<Value> out;
  if (call.arguments.values.empty()) {
    const Parameters given = call.parameters({"attribute", "default"}, 1);
    if (!is_true(call.input)) return generator(call, {});
    for (const Value& item : items_of(call.rendering, call.input)) {
      Value value = attribute(call, item, *given[0]);
      out.push_back(given[1] && value.is<Undefined>() ? *given[1] : std::move(value));
    }
  } else if (is_true(call.input)) {
    const std::string& filter = call.string(call.arguments.values[0]);
    const Arguments rest = after(call.arguments, 1);
    for (const Value& item : items_of(call.rendering, call.input))
      out.push_back(apply_filter(call.rendering, filter, item, rest));
  }
  return generator(call, std::move(out));
}

Value extreme(const FilterCall& call) {
  const Parameters given = call.parameters({"case_sensitive", "attribute"});
  const bool largest = call.name == "max";
  const std::vector<Value> items = items_of(call.rendering, call.input);
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    return sort_key(call, given[1] ? attribute(call, item, *given[1]) : item,
                    given[0] && is_true(*given[0]));
  };
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const Value a = key_of(items[best]), b = key_of(items[i]);
    if (largest ? is_less(call.rendering, a, b) : is_less(call.rendering, b, a)) best = i;
  }
  return items[best];
}

Value replace(const FilterCall& call) {
  const Parameters given = call.parameters({"old", "new", "count"}, 2);
  const int64_t count = given[2] && !given[2]->is<None>()
                            ? integer_argument(call.rendering, *given[2], "replace: count")
                            : -1;
  const std::string text = call.text(), old = str_of(call.rendering, *given[0]);
  call.rendering.charge_search(text, old);
  const auto result =
      replace_text(text, old, str_of(call.rendering, *given[1]), count, size_t(1) << 28);
  if (!result) call.rendering.fail("the result of replace is too large");
  return call.rendering.text(*result);
}

Value reverse(const FilterCall& call) {
  call.parameters({});
  std::vector<Value> items = items_of(call.rendering, call.input);
  std::ranges::reverse(items);
  if (!call.input.string()) return generator(call, std::move(items));
  std::string out;
  for (const Value& item : items) out += *item.string();
  return call.rendering.text(std::move(out));
}

Value round_filter(const FilterCall& call) {
  const Parameters given = call.parameters({"precision", "method"});
  const int64_t precision =
      given[0] ? integer_argument(call.rendering, *given[0], "round: precision") : 0;
  const std::string method = given[1] ? call.string(*given[1]) : "common";
  double number = 0;
  if (!number_of(call.input, number) || precision != 0)
    call.rendering.fail("round of a {} to {} digits is not supported", type_name(call.input),
                        precision);
  if (method == "ceil") return Value(std::ceil(number));
  if (method == "floor") return Value(std::floor(number));
  if (method != "common")
    call.rendering.fail("round: the method '{}' is not known", printable(method));
  return Value(std::nearbyint(number));  // to even, as Python
}

Value safe(const FilterCall& call) {
  call.parameters({});
  return Value(StringValue{std::make_shared<const std::string>(call.text()), true});
}

// select, reject, selectattr, rejectattr.
Value select(const FilterCall& call) {
  const bool of_attribute = call.name.ends_with("attr"), keeps = call.name.starts_with("select");
  const std::vector<Value>& values = call.arguments.values;
  if (!is_true(call.input)) return generator(call, {});
  if (of_attribute && values.empty())
    call.rendering.fail("{}: the attribute is missing", call.name);
  const size_t used = of_attribute ? 1 : 0;
  const bool tested = values.size() > used;
  const Arguments rest = after(call.arguments, used + tested);
  std::vector<Value> out;
  for (const Value& item : items_of(call.rendering, call.input)) {
    const Value value = of_attribute ? attribute(call, item, values[0]) : item;
    const bool holds = tested ? apply_test(call.rendering, call.string(values[used]), value, rest)
                              : is_true(value);
    if (holds == keeps) out.push_back(item);
  }
  return generator(call, std::move(out));
}

Value sort(const FilterCall& call) {
  const Parameters given = call.parameters({"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = items_of(call.rendering, call.input), keys;
  for (const Value& item : items) {
    if (given[2] && given[2]->string() && given[2]->string()->find(',') != std::string::npos)
      call.rendering.fail("sort by several attributes is not supported");
    keys.push_back(
        sort_key(call, given[2] && !given[2]->is<None>() ? attribute(call, item, *given[2]) : item,
                 given[1] && is_true(*given[1])));
  }
  return call.rendering.list(sorted(call, std::move(items), keys, given[0] && is_true(*given[0])));
}

Value string_filter(const FilterCall& call) {
  call.parameters({});
  return call.input.string() ? call.input : call.rendering.text(call.text());
}

Value sum(const FilterCall& call) {
  const Parameters given = call.parameters({"attribute", "start"});
  Value total = given[1] ? *given[1] : Value(int64_t{0});
  for (const Value& item : items_of(call.rendering, call.input)) {
    const bool member = given[0] && !given[0]->is<None>();
    total =
        arithmetic(call.rendering, "+", total, member ? attribute(call, item, *given[0]) : item);
  }
  return total;
}

Value tojson(const FilterCall& call) {
  const Parameters given = call.parameters({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = given[0] && is_true(*given[0]);
  style.sort_keys = given[3] && is_true(*given[3]);
  if (given[1] && !given[1]->is<None>()) {
    style.item_separator.assign(1, ',');
    if (const std::string* text = given[1]->string()) {
      style.indent = *text;
    } else {
      const int64_t width = integer_argument(call.rendering, *given[1], "tojson: indent");
      if (width > 100) call.rendering.fail("tojson: the indent {} is above 100", width);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
  }
  if (given[2] && !given[2]->is<None>()) {
    const ListValue* pair = given[2]->list();
    if (!pair || pair->items.size() != 2) call.rendering.fail("tojson: separators are two strings");
    style.item_separator = call.string(pair->items[0]);
    style.key_separator = call.string(pair->items[1]);
  }
  return call.rendering.text(json_of(call.rendering, call.input, style));
}

Value trim(const FilterCall& call) {
  const Parameters given = call.parameters({"chars"});
  std::optional<std::string_view> set;
  if (given[0] && !given[0]->is<None>()) set = call.string(*given[0]);
  const std::string text = call.text();
  if (set) call.rendering.charge(text.size() * (1 + set->size() / 8));
  return call.rendering.text(std::string(strip(text, Side::kBoth, set)));
}

Value unique(const FilterCall& call) {
  const Parameters given = call.parameters({"case_sensitive", "attribute"});
  std::vector<Value> out, keys;
  for (const Value& item : items_of(call.rendering, call.input)) {
    const bool member = given[1] && !given[1]->is<None>();
    Value key = sort_key(call, member ? attribute(call, item, *given[1]) : item,
                         given[0] && is_true(*given[0]));
    if (std::ranges::any_of(keys,
                            [&](const Value& known) { return equal(call.rendering, known, key); }))
      continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return generator(call, std::move(out));
}

Value upper(const FilterCall& call) {
  call.parameters({});
  return cased(call, call.input, Case::kUpper);
}

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
constexpr NamedFilter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", capitalize},
    {"count", length},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort},
    {"first", first},
    {"float", float_filter},
    {"indent", indent},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list_filter},
    {"lower", lower},
    {"map", map_filter},
    {"max", extreme},
    {"min", extreme},
    {"reject", select},
    {"rejectattr", select},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round_filter},
    {"safe", safe},
    {"select", select},
    {"selectattr", select},
    {"sort", sort},
    {"string", string_filter},
    {"sum", sum},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

}  // namespace

Value apply_filter(Rendering& rendering, std::string_view name, const Value& input,
                   const Arguments& arguments) {
  rendering.charge(8);
  const auto* known = std::ranges::find(kFilters, name, &NamedFilter::name);
  if (known == std::end(kFilters))
    rendering.fail("the filter '{}' is not supported", printable(name.substr(0, 80)));
  return known->filter({rendering, name, input, arguments});
}

}  // namespace ashlar::data::jinja
