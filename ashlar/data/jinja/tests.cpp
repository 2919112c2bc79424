// The tests of Jinja: `value is NAME`.
#include <algorithm>

#include "ashlar/core/text.h"
#include "ashlar/data/jinja/python_text.h"
#include "ashlar/data/jinja/rendering.h"

namespace ashlar::data::jinja {
namespace {

struct TestCall {
  Rendering& rendering;
  std::string_view name;
  const Value& input;
  const Value* other;  // null for tests without an argument
};

bool is_sequence(const Value& value) {
  const ListValue* list = value.list();
  const bool indexed =
      list && list->kind != ListValue::Kind::kView && list->kind != ListValue::Kind::kGenerator;
  return indexed || value.dict() || value.string() || value.is<Undefined>();
}

bool is_callable(const Value& value) {
  return value.is<std::shared_ptr<const MethodValue>>() || value.is<const MacroValue*>() ||
         value.is<FunctionValue>() || value.is<Undefined>();
}

int64_t rest(const TestCall& call, int64_t divisor) {
  if (divisor == 0) call.rendering.fail("division by zero");
  return divisor == -1 ? 0 : integer_argument(call.rendering, call.input, call.name) % divisor;
}

bool is_cased(const TestCall& call, Case wanted) {
  const std::string text = str_of(call.rendering, call.input);
  const auto same = with_case(text, wanted);
  const auto other = with_case(text, wanted == Case::kLower ? Case::kUpper : Case::kLower);
  if (!same || !other)
    call.rendering.fail("{}: the case of letters beyond ASCII is not supported", call.name);
  return *same == text && *other != text;
}

bool is_same(const Value& a, const Value& b) {
  const bool simple = a.is<bool>() || a.is<None>() || b.is<bool>() || b.is<None>();
  return simple ? type_name(a) == type_name(b) && is_equal(a, b) : is_equal(a, b);
}

struct NamedTest {
  std::string_view name;
  bool has_argument;
  bool (*test)(const TestCall&);
};
constexpr NamedTest kTests[] = {
    {"boolean", false, [](const TestCall& c) { return c.input.is<bool>(); }},
    {"callable", false, [](const TestCall& c) { return is_callable(c.input); }},
    {"defined", false, [](const TestCall& c) { return !c.input.is<Undefined>(); }},
    {"divisibleby", true,
     [](const TestCall& c) {
       return rest(c, integer_argument(c.rendering, *c.other, c.name)) == 0;
     }},
    {"even", false, [](const TestCall& c) { return rest(c, 2) == 0; }},
    {"odd", false, [](const TestCall& c) { return rest(c, 2) != 0; }},
    {"false", false, [](const TestCall& c) { return c.input.is<bool>() && !is_true(c.input); }},
    {"true", false, [](const TestCall& c) { return c.input.is<bool>() && is_true(c.input); }},
    {"float", false, [](const TestCall& c) { return c.input.is<double>(); }},
    {"in", true, [](const TestCall& c) { return contains(c.rendering, *c.other, c.input); }},
    {"integer", false, [](const TestCall& c) { return c.input.is<int64_t>(); }},
    {"iterable", false, [](const TestCall& c) { return is_iterable(c.input); }},
    {"lower", false, [](const TestCall& c) { return is_cased(c, Case::kLower); }},
    {"upper", false, [](const TestCall& c) { return is_cased(c, Case::kUpper); }},
    {"mapping", false, [](const TestCall& c) { return c.input.dict() != nullptr; }},
    {"none", false, [](const TestCall& c) { return c.input.is<None>(); }},
    {"number", false,
     [](const TestCall& c) {
       double number = 0;
       return number_of(c.input, number);
     }},
    {"sameas", true, [](const TestCall& c) { return is_same(c.input, *c.other); }},
    {"sequence", false, [](const TestCall& c) { return is_sequence(c.input); }},
    {"string", false, [](const TestCall& c) { return c.input.string() != nullptr; }},
    {"undefined", false, [](const TestCall& c) { return c.input.is<Undefined>(); }},
    {"eq", true, [](const TestCall& c) { return equal(c.rendering, c.input, *c.other); }},
    {"ne", true, [](const TestCall& c) { return !equal(c.rendering, c.input, *c.other); }},
    {"lt", true, [](const TestCall& c) { return is_less(c.rendering, c.input, *c.other); }},
    {"gt", true, [](const TestCall& c) { return is_less(c.rendering, *c.other, c.input); }},
    {"le", true, [](const TestCall& c) { return !is_less(c.rendering, *c.other, c.input); }},
    {"ge", true, [](const TestCall& c) { return !is_less(c.rendering, c.input, *c.other); }},
};
struct TestAlias {
  std::string_view name, means;
};
constexpr TestAlias kAliases[] = {{"equalto", "eq"},  {"==", "eq"}, {"!=", "ne"},
                                  {"lessthan", "lt"}, {"<", "lt"},  {"greaterthan", "gt"},
                                  {">", "gt"},        {"<=", "le"}, {">=", "ge"}};

}  // namespace

bool apply_test(Rendering& rendering, std::string_view name, const Value& input,
                const Arguments& arguments) {
  rendering.charge(8);
  const auto* alias = std::ranges::find(kAliases, name, &TestAlias::name);
  const std::string_view meant = alias == std::end(kAliases) ? name : alias->means;
  const auto* known = std::ranges::find(kTests, meant, &NamedTest::name);
  if (known == std::end(kTests))
    rendering.fail("the test '{}' is not supported", printable(name.substr(0, 80)));
  const size_t expected = known->has_argument ? 1 : 0;
  if (arguments.values.size() != expected || !arguments.named.empty())
    rendering.fail("the test '{}' takes {} argument(s), not {}", name, expected,
                   arguments.values.size() + arguments.named.size());
  return known->test({rendering, name, input, expected ? &arguments.values[0] : nullptr});
}

}  // namespace ashlar::data::jinja
