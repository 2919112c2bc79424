#include "ashlar/data/jinja/rendering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/jinja/python_text.h"
#include "ashlar/data/jinja/render.h"

namespace ashlar::data::jinja {
namespace {

constexpr size_t kItemUnits = 64;  // the memory of an item of a list

int depth_of(const Value& value) {
  if (const ListValue* list = value.list()) return list->depth;
  if (const DictValue* dict = value.dict()) return dict->depth;
  if (const auto* method = value.get_if<std::shared_ptr<const MethodValue>>())
    return depth_of((*method)->object) + 1;
  if (const auto* loop = value.get_if<std::shared_ptr<const LoopValue>>())
    return (*loop)->items->depth + 1;
  return 0;
}

std::string repr_list(Rendering& rendering, const ListValue& list) {
  if (list.kind == ListValue::Kind::kGenerator || list.kind == ListValue::Kind::kRange)
    rendering.fail("a generator or range has no text; the filter `list` makes it a list");
  std::string out = list.kind == ListValue::Kind::kTuple  ? "("
                    : list.kind == ListValue::Kind::kView ? "dict_items(["
                                                          : "[";
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr_of(rendering, list.items[i]);
  }
  if (list.kind == ListValue::Kind::kTuple) return out + (list.items.size() == 1 ? ",)" : ")");
  return out + (list.kind == ListValue::Kind::kView ? "])" : "]");
}

std::string repr_dict(Rendering& rendering, const DictValue& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.items) {
    if (out.size() > 1) out += ", ";
    out += repr_of(rendering, key) + ": " + repr_of(rendering, value);
  }
  return out + "}";
}

class JsonWriter {
 public:
  JsonWriter(Rendering& rendering, const JsonStyle& style) : rendering_(rendering), style_(style) {}
  std::string take() { return std::move(out_); }

  void put(const Value& value) {
    rendering_.charge(8);
    int64_t integer = 0;
    if (const std::string* text = value.string()) {
      rendering_.charge(text->size());
      out_ += json_text(*text, style_.ensure_ascii);
    } else if (value.is<None>()) {
      out_ += "null";
    } else if (const bool* flag = value.get_if<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (integer_of(value, integer)) {
      out_ += fmt::to_string(integer);
    } else if (const double* real = value.get_if<double>()) {
      out_ += std::isnan(*real)   ? "NaN"
              : std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity")
                                  : repr_of(*real);
    } else if (const DictValue* dict = value.dict()) {
      put_dict(*dict);
    } else if (const ListValue* list = value.list();
               list &&
               (list->kind == ListValue::Kind::kList || list->kind == ListValue::Kind::kTuple)) {
      put_list(*list);
    } else {
      rendering_.fail("tojson: a value of type {} is not JSON", type_name(value));
    }
  }

 private:
  void put_list(const ListValue& list) {
    if (list.items.empty()) return void(out_ += "[]");
    begin('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      separate(i);
      put(list.items[i]);
    }
    end(']');
  }

  void put_dict(const DictValue& dict) {
    if (dict.items.empty()) return void(out_ += "{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys)
      std::ranges::stable_sort(items, [&](const auto* a, const auto* b) {
        return is_less(rendering_, a->first, b->first);
      });
    begin('{');
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i);
      const std::string key = key_of(items[i]->first);
      rendering_.charge(key.size() + style_.key_separator.size());
      out_ += json_text(key, style_.ensure_ascii) + style_.key_separator;
      put(items[i]->second);
    }
    end('}');
  }

  std::string key_of(const Value& key) {
    if (const std::string* text = key.string()) return *text;
    if (!key.is<bool>() && !key.is<None>() && !key.is<int64_t>() && !key.is<double>())
      rendering_.fail("tojson: a key of type {} is not JSON", type_name(key));
    JsonWriter writer(rendering_, style_);
    writer.put(key);
    return writer.take();
  }

  void begin(char bracket) {
    out_ += bracket;
    ++level_;
    new_line();
  }
  void separate(size_t i) {
    if (i == 0) return;
    rendering_.charge(style_.item_separator.size());
    out_ += style_.item_separator;
    new_line();
  }
  void end(char bracket) {
    --level_;
    new_line();
    out_ += bracket;
  }
  void new_line() {
    if (!style_.indent) return;
    out_ += '\n';
    rendering_.charge(style_.indent->size() * static_cast<size_t>(level_));
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  Rendering& rendering_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

Value loop_member(Rendering& rendering, const LoopValue& loop, const std::string& name) {
  const auto& items = loop.items->items;
  const auto size = static_cast<int64_t>(items.size());
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "index0") return Value(loop.index0);
  if (name == "revindex") return Value(size - loop.index0);
  if (name == "revindex0") return Value(size - loop.index0 - 1);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.index0 == size - 1);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(loop.depth);
  if (name == "depth0") return Value(loop.depth - 1);
  if (name == "previtem")
    return loop.index0 > 0 ? items[static_cast<size_t>(loop.index0 - 1)]
                           : make_undefined("there is no previous item");
  if (name == "nextitem")
    return loop.index0 + 1 < size ? items[static_cast<size_t>(loop.index0 + 1)]
                                  : make_undefined("there is no next item");
  rendering.fail("'loop.{}' is not supported", printable(name));
}

Value no_member(const Value& value, const std::string& name) {
  const bool none = value.is<None>();
  return make_undefined(fmt::format("'{}{}' has no attribute '{}'",
                                    none ? "None" : type_name(value), none ? "" : " object",
                                    printable(name.substr(0, 80))));
}

// The method, unless the sandbox forbids it; nullopt: there is none.
std::optional<Value> method_of(Rendering& rendering, const Value& value, const std::string& name) {
  if (!has_method(value, name)) return std::nullopt;
  if (is_mutating(value, name))
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe: values do "
                    "not change",
                    name, type_name(value)));
  if (depth_of(value) >= kMaxValueDepth) rendering.fail("values nest too deeply");
  return Value(std::make_shared<const MethodValue>(MethodValue{value, name}));
}

Value add_texts(Rendering& rendering, const StringValue& a, const StringValue& b) {
  const auto escaped = [&](const StringValue& text, bool other_safe) {
    rendering.charge(text.bytes->size());
    if (text.is_safe || !other_safe) return *text.bytes;
    std::string out;
    for (const char c : *text.bytes)
      out += c == '&'    ? "&amp;"
             : c == '<'  ? "&lt;"
             : c == '>'  ? "&gt;"
             : c == '\'' ? "&#39;"
             : c == '"'  ? "&#34;"
                         : std::string(1, c);
    return out;
  };
  std::string sum = escaped(a, b.is_safe) + escaped(b, a.is_safe);
  rendering.charge(sum.size());
  return Value(
      StringValue{std::make_shared<const std::string>(std::move(sum)), a.is_safe || b.is_safe});
}

Value repeat(Rendering& rendering, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times));
  const ListValue* list = value.list();
  const size_t size = list ? list->items.size() * kItemUnits : value.string()->size();
  if (size > 0 && count > (size_t(1) << 40) / size) rendering.fail("the result of * is too large");
  rendering.charge(size * count);
  if (!list) {
    std::string out;
    for (size_t i = 0; i < (size > 0 ? count : 0); ++i) out += *value.string();
    return make_string(std::move(out));
  }
  std::vector<Value> items;
  for (size_t i = 0; i < (size > 0 ? count : 0); ++i)
    items.insert(items.end(), list->items.begin(), list->items.end());
  return rendering.list(std::move(items), list->kind);
}

std::optional<int64_t> power(Rendering& rendering, int64_t base, int64_t exponent) {
  if (exponent < 0) return std::nullopt;  // a float in Python
  int64_t result = 1;
  for (; exponent > 0 && base != 0 && base != 1 && base != -1; --exponent)
    if (__builtin_mul_overflow(result, base, &result))
      rendering.fail("the result of ** needs more than 64 bits");
  if (exponent > 0) result = base == -1 && exponent % 2 == 0 ? 1 : base;
  return result;
}

std::optional<int64_t> whole(Rendering& rendering, std::string_view name, int64_t a, int64_t b) {
  if (name == "**") return power(rendering, a, b);
  int64_t result = 0;
  bool overflows = false;
  if (name == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (name == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (name == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (name == "//" || name == "%") {
    if (b == 0) rendering.fail("division by zero");
    overflows = a == std::numeric_limits<int64_t>::min() && b == -1;
    if (!overflows) {
      const int64_t rest = a % b;
      const bool below = rest != 0 && (rest < 0) != (b < 0);  // Python rounds down
      result = name == "%" ? rest + (below ? b : 0) : a / b - below;
    }
  }
  if (overflows) rendering.fail("{} {} {} needs more than 64 bits", a, name, b);
  return name == "/" ? std::nullopt : std::optional(result);
}

Value real(Rendering& rendering, std::string_view name, double a, double b) {
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "**") {
    const double result = std::pow(a, b);
    if (!std::isfinite(result)) rendering.fail("{} ** {} is no finite number", a, b);
    return Value(result);
  }
  if (b == 0) rendering.fail("division by zero");
  if (name == "/") return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value(name == "%" ? rest : std::floor((a - rest) / b + 0.5));
}

}  // namespace

void Rendering::charge(size_t units) {
  if (units > static_cast<size_t>(work_)) fail("the template takes too much time or memory");
  work_ -= static_cast<int64_t>(units);
}

void Rendering::charge_search(std::string_view text, std::string_view part) {
  const size_t places = text.size() - std::min(text.size(), part.size());
  charge(text.size() + places * (part.size() / 64));
}

template <typename Container>
void Rendering::weigh(Container& container, const Value& part) {
  constexpr size_t kMaxWeight = size_t(1) << 26;
  container.depth = std::max(container.depth, depth_of(part) + 1);
  container.weight += weight_of(part);
  if (container.depth > kMaxValueDepth) fail("values nest deeper than {} levels", kMaxValueDepth);
  if (container.weight > kMaxWeight) fail("a value has more than {} parts", kMaxWeight);
}

Value Rendering::list(std::vector<Value> items, ListValue::Kind kind) {
  charge(kItemUnits * (items.size() + 1));
  auto list = std::make_shared<ListValue>();
  list->kind = kind;
  for (const Value& item : items) weigh(*list, item);
  list->items = std::move(items);
  return Value(std::shared_ptr<const ListValue>(std::move(list)));
}

Value Rendering::texts(const std::vector<std::string>& items) {
  std::vector<Value> values;
  for (const std::string& item : items) values.push_back(text(item));
  return list(std::move(values));
}

Value Rendering::dict(std::vector<std::pair<Value, Value>> items) {
  std::vector<std::pair<Value, Value>> unique;
  for (std::pair<Value, Value>& item : items) {
    const Value& key = item.first;
    if (key.list() || key.dict()) fail("a {} cannot be a key", type_name(key));
    charge(unique.size() * weight_of(key));
    const auto same =
        std::ranges::find_if(unique, [&](const auto& known) { return is_equal(known.first, key); });
    if (same == unique.end())
      unique.push_back(std::move(item));
    else
      same->second = std::move(item.second);
  }
  return dict_of_unique(std::move(unique));
}

Value Rendering::dict_of_unique(std::vector<std::pair<Value, Value>> items) {
  charge(2 * kItemUnits * (items.size() + 1));
  auto dict = std::make_shared<DictValue>();
  for (const auto& [key, value] : items) {
    weigh(*dict, key);
    weigh(*dict, value);
  }
  dict->items = std::move(items);
  return Value(std::shared_ptr<const DictValue>(std::move(dict)));
}

Parameters::Parameters(const Rendering& rendering, std::string_view callee,
                       const Arguments& arguments, std::initializer_list<std::string_view> names,
                       size_t required)
    : values_(names.size()) {
  if (arguments.values.size() > names.size())
    rendering.fail("{} takes at most {} arguments, not {}", callee, names.size(),
                   arguments.values.size());
  for (size_t i = 0; i < arguments.values.size(); ++i) values_[i] = &arguments.values[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::ranges::find(names, std::string_view(name));
    if (at == names.end()) rendering.fail("{} has no parameter '{}' here", callee, printable(name));
    const auto i = static_cast<size_t>(at - names.begin());
    if (values_[i]) rendering.fail("{}: '{}' is given twice", callee, name);
    values_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) rendering.fail("{}: '{}' is missing", callee, *(names.begin() + i));
}

std::string str_of(Rendering& rendering, const Value& value) {
  if (value.is<Undefined>()) return "";
  const std::string* text = value.string();
  if (text) rendering.charge(text->size());
  return text ? *text : repr_of(rendering, value);
}

std::string repr_of(Rendering& rendering, const Value& value) {
  rendering.charge(8);
  int64_t integer = 0;
  if (const std::string* text = value.string()) {
    rendering.charge(4 * text->size());
    return repr_text(*text);
  }
  if (value.is<None>()) return "None";
  if (value.is<Undefined>()) return "Undefined";
  if (const bool* flag = value.get_if<bool>()) return *flag ? "True" : "False";
  if (integer_of(value, integer)) return fmt::to_string(integer);
  if (const double* number = value.get_if<double>()) return repr_of(*number);
  if (const ListValue* list = value.list()) return repr_list(rendering, *list);
  if (const DictValue* dict = value.dict()) return repr_dict(rendering, *dict);
  rendering.fail("a value of type {} has no text", type_name(value));
}

std::string json_of(Rendering& rendering, const Value& value, const JsonStyle& style) {
  JsonWriter writer(rendering, style);
  writer.put(value);
  std::string out = writer.take();
  rendering.charge(out.size());
  return out;
}

bool is_iterable(const Value& value) {
  return value.list() || value.dict() || value.string() || value.is<Undefined>();
}

std::vector<Value> items_of(Rendering& rendering, const Value& value) {
  if (value.is<Undefined>()) return {};
  if (const ListValue* list = value.list()) {
    rendering.charge(kItemUnits * list->items.size());
    if (list->kind == ListValue::Kind::kGenerator && std::exchange(list->used_up, true)) return {};
    return list->items;
  }
  std::vector<Value> items;
  if (const DictValue* dict = value.dict()) {
    rendering.charge(kItemUnits * dict->items.size());
    for (const auto& [key, unused] : dict->items) items.push_back(key);
    return items;
  }
  const std::string* text = value.string();
  if (!text) rendering.fail("a value of type {} has no items", type_name(value));
  rendering.charge(2 * kItemUnits * text->size());
  for (std::string& character : characters_of(*text))
    items.push_back(make_string(std::move(character)));
  return items;
}

int64_t length_of(Rendering& rendering, const Value& value) {
  if (const std::string* text = value.string()) {
    rendering.charge(text->size());
    return num_characters(*text);
  }
  if (const ListValue* list = value.list(); list && list->kind != ListValue::Kind::kGenerator)
    return static_cast<int64_t>(list->items.size());
  if (const DictValue* dict = value.dict()) return static_cast<int64_t>(dict->items.size());
  if (value.is<Undefined>()) return 0;
  rendering.fail("a value of type {} has no length", type_name(value));
}

Value member_of(Rendering& rendering, const Value& value, const std::string& name) {
  if (const auto* undefined = value.get_if<Undefined>()) rendering.fail("{}", *undefined->message);
  if (const auto* loop = value.get_if<std::shared_ptr<const LoopValue>>())
    return loop_member(rendering, **loop, name);
  if (const auto* space = value.get_if<NamespaceValue*>()) return namespace_member(**space, name);
  if (const auto method = method_of(rendering, value, name)) return *method;
  if (const DictValue* dict = value.dict()) {
    rendering.charge(dict->items.size() * (1 + name.size() / 64));
    if (const Value* found = find(*dict, name)) return *found;
  }
  if (name.starts_with("__"))
    rendering.fail("the attribute '{}' is not supported", printable(name));
  return no_member(value, name);
}

Value item_of(Rendering& rendering, const Value& value, const Value& key) {
  if (const auto* undefined = value.get_if<Undefined>()) rendering.fail("{}", *undefined->message);
  if (const DictValue* dict = value.dict()) {
    rendering.charge(dict->items.size() * weight_of(key));
    if (const Value* found = find(*dict, key)) return *found;
  }
  int64_t at = 0;
  const ListValue* list = value.list();
  const bool indexed =
      list && list->kind != ListValue::Kind::kView && list->kind != ListValue::Kind::kGenerator;
  if (integer_of(key, at)) {
    const auto size = indexed ? static_cast<int64_t>(list->items.size()) : 0;
    if (at < 0) at += indexed ? size : 0;
    if (indexed && at >= 0 && at < size) return list->items[static_cast<size_t>(at)];
    if (const std::string* text = value.string()) {
      rendering.charge(text->size());
      if (const auto character = character_at(*text, at))
        return rendering.text(std::string(*character));
    }
  }
  if (const std::string* name = key.string()) {
    if (const auto* loop = value.get_if<std::shared_ptr<const LoopValue>>())
      return loop_member(rendering, **loop, *name);
    if (const auto* space = value.get_if<NamespaceValue*>())
      return namespace_member(**space, *name);
    if (const auto method = method_of(rendering, value, *name)) return *method;
    return no_member(value, *name);
  }
  return no_member(value, key.is<Undefined>() ? "Undefined" : repr_of(rendering, key));
}

Value slice_of(Rendering& rendering, const Value& value, std::optional<int64_t> start,
               std::optional<int64_t> stop, int64_t step) {
  if (const auto* undefined = value.get_if<Undefined>()) rendering.fail("{}", *undefined->message);
  if (step == 0) rendering.fail("a slice cannot have the step 0");
  if (const std::string* text = value.string()) {
    rendering.charge(8 * text->size());
    return rendering.text(slice_text(*text, slice_range(num_characters(*text), start, stop, step)));
  }
  const ListValue* list = value.list();
  if (!list || list->kind == ListValue::Kind::kView || list->kind == ListValue::Kind::kGenerator)
    return no_member(value, "slice");
  const SliceRange range = slice_range(static_cast<int64_t>(list->items.size()), start, stop, step);
  std::vector<Value> items;
  for (int64_t i = 0; i < range.count; ++i)
    items.push_back(list->items[static_cast<size_t>(range.first + i * range.step)]);
  return rendering.list(std::move(items), list->kind);
}

bool equal(Rendering& rendering, const Value& a, const Value& b) {
  rendering.charge(std::min(weight_of(a), weight_of(b)));
  return is_equal(a, b);
}

bool contains(Rendering& rendering, const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    const std::string* part = item.string();
    if (!part) rendering.fail("'in' a string needs a string, not a {}", type_name(item));
    rendering.charge_search(*text, *part);
    return text->find(*part) != std::string::npos;
  }
  if (const DictValue* dict = container.dict()) {
    rendering.charge(dict->items.size() * weight_of(item));
    return find(*dict, item) != nullptr;
  }
  const std::vector<Value> items = items_of(rendering, container);
  return std::ranges::any_of(items, [&](const Value& one) { return equal(rendering, one, item); });
}

bool is_less(Rendering& rendering, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (const auto* undefined = value->get_if<Undefined>())
      rendering.fail("{}", *undefined->message);
  rendering.charge(8);
  int64_t i = 0, j = 0;
  if (integer_of(a, i) && integer_of(b, j)) return i < j;
  double x = 0, y = 0;
  if (number_of(a, x) && number_of(b, y)) return x < y;
  if (a.string() && b.string()) {
    rendering.charge(std::min(weight_of(a), weight_of(b)));
    return *a.string() < *b.string();
  }
  const ListValue *p = a.list(), *q = b.list();
  if (!p || !q || p->kind != q->kind)
    rendering.fail("a {} and a {} have no order", type_name(a), type_name(b));
  rendering.charge(p->items.size());
  for (size_t at = 0; at < p->items.size() && at < q->items.size(); ++at)
    if (!equal(rendering, p->items[at], q->items[at]))
      return is_less(rendering, p->items[at], q->items[at]);
  return p->items.size() < q->items.size();
}

Value arithmetic(Rendering& rendering, std::string_view name, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (const auto* undefined = value->get_if<Undefined>())
      rendering.fail("{}", *undefined->message);
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  const bool whole_a = integer_of(a, i), whole_b = integer_of(b, j);
  if (whole_a && whole_b)
    if (const auto result = whole(rendering, name, i, j)) return Value(*result);
  if (number_of(a, x) && number_of(b, y)) return real(rendering, name, x, y);
  const auto *s = a.get_if<StringValue>(), *t = b.get_if<StringValue>();
  if (name == "+" && s && t) return add_texts(rendering, *s, *t);
  const ListValue *p = a.list(), *q = b.list();
  const auto joins = [](const ListValue* list) {
    return list && (list->kind == ListValue::Kind::kList || list->kind == ListValue::Kind::kTuple);
  };
  if (name == "+" && joins(p) && joins(q) && p->kind == q->kind) {
    std::vector<Value> items = p->items;
    items.insert(items.end(), q->items.begin(), q->items.end());
    return rendering.list(std::move(items), p->kind);
  }
  if (name == "*" && (s || joins(p)) && whole_b) return repeat(rendering, a, j);
  if (name == "*" && (t || joins(q)) && whole_a) return repeat(rendering, b, i);
  if (name == "%" && s) rendering.fail("formatting with % is not supported");
  rendering.fail("{} of a {} and a {} is not supported", name, type_name(a), type_name(b));
}

const std::string& string_argument(const Rendering& rendering, const Value& value,
                                   std::string_view what) {
  const std::string* text = value.string();
  if (!text) rendering.fail("{} is a {}; expected a string", what, type_name(value));
  return *text;
}

int64_t integer_argument(const Rendering& rendering, const Value& value, std::string_view what) {
  int64_t number = 0;
  if (!integer_of(value, number))
    rendering.fail("{} is a {}; expected an integer", what, type_name(value));
  return number;
}

}  // namespace ashlar::data::jinja
