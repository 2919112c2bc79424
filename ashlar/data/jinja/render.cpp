// How it works.  run() executes statements into out_, eval() gives the value of an expression.
// Scopes form a chain: loops, macros, with, set and filter blocks and generation have their own; an
// assignment goes to the innermost.  A macro sees the scope that defined it, as that is when the
// macro is called, so a scope in which a macro was defined lives as long as the rendering.
#include "ashlar/data/jinja/render.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/jinja/python_text.h"

namespace ashlar::data::jinja {

struct RenderScope {
  RenderScope* outer = nullptr;
  bool has_macro = false;  // here or in a scope inside of this one
  std::vector<std::pair<std::string, Value>> names = {};
};

struct MacroValue {
  const Statement* definition;
  RenderScope* scope;
};

namespace {

constexpr std::array<std::string_view, 5> kGlobals = {"range", "dict", "namespace",
                                                      "raise_exception", "strftime_now"};
constexpr int64_t kMaxRange = 100'000;  // of Jinja's sandbox

class TemplateRenderer {
 public:
  TemplateRenderer(Rendering& rendering, const Variables& variables, const std::tm& now)
      : rendering_(rendering), variables_(variables), now_(now) {}

  Rendered run(const std::vector<Statement>& statements) {
    RenderScope* scope = open_scope(nullptr);
    run(statements, *scope);
    return std::move(result_);
  }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Counts calls inside each other while it exists.
  class Depth {
   public:
    explicit Depth(TemplateRenderer& renderer) : renderer_(renderer) {
      if (++renderer_.depth_ > kMaxRenderDepth)
        renderer_.rendering_.fail("the template nests or calls itself too deeply");
    }
    ~Depth() { --renderer_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    TemplateRenderer& renderer_;
  };

  RenderScope* open_scope(RenderScope* outer) {
    scopes_.push_back(std::make_unique<RenderScope>(RenderScope{outer}));
    rendering_.charge(64);
    return scopes_.back().get();
  }
  // The scopes that were opened inside of it and kept stay behind it.
  void close_scope(RenderScope* scope) {
    if (!scope->has_macro && scopes_.back().get() == scope) scopes_.pop_back();
  }

  // --------------------------------------------------------------------------------- statements
  Flow run(const std::vector<Statement>& statements, RenderScope& scope) {
    const Depth depth(*this);
    for (const Statement& statement : statements) {
      rendering_.place = statement.place;
      rendering_.charge(8);
      const Flow flow = run(statement, scope);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run(const Statement& statement, RenderScope& scope) {
    switch (statement.tag) {
      case StatementTag::kText:
        write(statement.text);
        return Flow::kNext;
      case StatementTag::kOutput:
        write(str_of(rendering_, eval(statement.expressions[0], scope)));
        return Flow::kNext;
      case StatementTag::kIf:
        return run_if(statement, scope);
      case StatementTag::kFor:
        return run_for(statement, scope);
      case StatementTag::kBreak:
        return Flow::kBreak;
      case StatementTag::kContinue:
        return Flow::kContinue;
      case StatementTag::kWith:
        return run_with(statement, scope);
      default:
        define(statement, scope);
        return Flow::kNext;
    }
  }

  void define(const Statement& statement, RenderScope& scope) {
    if (statement.tag == StatementTag::kSet) {
      assign(statement.targets[0], eval(statement.expressions[0], scope), scope);
    } else if (statement.tag == StatementTag::kMacro) {
      for (RenderScope* outer = &scope; outer && !outer->has_macro; outer = outer->outer)
        outer->has_macro = true;
      macros_.push_back({&statement, &scope});
      rendering_.charge(64);
      set(scope, statement.text, Value(static_cast<const MacroValue*>(&macros_.back())));
    } else if (statement.tag == StatementTag::kGeneration) {
      generation(statement, scope);
    } else {
      Value text = block_text(statement.bodies[0], scope);
      if (!statement.expressions.empty()) {
        const Value outer = std::exchange(block_text_, text);
        text = eval(statement.expressions[0], scope);
        block_text_ = outer;
      }
      if (statement.tag == StatementTag::kFilterBlock)
        write(str_of(rendering_, text));
      else
        assign(statement.targets[0], std::move(text), scope);
    }
  }

  void write(std::string_view text) {
    rendering_.charge(text.size());
    *out_ += text;
  }

  // The output of a body, which has its own scope.
  Value block_text(const std::vector<Statement>& body, RenderScope& scope) {
    RenderScope* inner = open_scope(&scope);
    std::string text;
    std::string* outer = std::exchange(out_, &text);
    run(body, *inner);
    out_ = outer;
    close_scope(inner);
    return rendering_.text(std::move(text));
  }

  void generation(const Statement& statement, RenderScope& scope) {
    if (out_ != &result_.text)
      rendering_.fail(
          "the tag generation inside a macro, a set or a filter block is not supported");
    RenderScope* inner = open_scope(&scope);
    const size_t begin = out_->size();
    run(statement.bodies[0], *inner);
    result_.generated.emplace_back(begin, out_->size());
    close_scope(inner);
  }

  Flow run_if(const Statement& statement, RenderScope& scope) {
    for (size_t i = 0; i < statement.bodies.size(); ++i)
      if (i >= statement.expressions.size() || is_true(eval(statement.expressions[i], scope)))
        return run(statement.bodies[i], scope);
    return Flow::kNext;
  }

  Flow run_with(const Statement& statement, RenderScope& scope) {
    RenderScope* inner = open_scope(&scope);
    for (size_t i = 0; i < statement.targets.size(); ++i)
      assign(statement.targets[i], eval(statement.expressions[i], scope), *inner);
    const Flow flow = run(statement.bodies[0], *inner);
    close_scope(inner);
    return flow;
  }

  // The items that pass the loop's condition.
  std::vector<Value> loop_items(const Statement& loop, RenderScope& scope) {
    std::vector<Value> items = items_of(rendering_, eval(loop.expressions[0], scope));
    if (loop.expressions.size() < 2) return items;
    std::vector<Value> kept;
    for (const Value& item : items) {
      RenderScope* inner = open_scope(&scope);
      assign(loop.targets[0], item, *inner);
      if (is_true(eval(loop.expressions[1], *inner))) kept.push_back(item);
      close_scope(inner);
    }
    return kept;
  }

  Flow run_for(const Statement& loop, RenderScope& scope) {
    const Value items = rendering_.list(loop_items(loop, scope));
    const auto list = *items.get_if<std::shared_ptr<const ListValue>>();
    ++loop_depth_;
    for (size_t i = 0; i < list->items.size(); ++i) {
      RenderScope* inner = open_scope(&scope);
      const LoopValue at{list, static_cast<int64_t>(i), loop_depth_};
      set(*inner, "loop", Value(std::make_shared<const LoopValue>(at)));
      assign(loop.targets[0], list->items[i], *inner);
      const Flow flow = run(loop.bodies[0], *inner);
      close_scope(inner);
      if (flow == Flow::kBreak) break;
    }
    --loop_depth_;
    if (list->items.empty() && loop.bodies.size() > 1) {
      RenderScope* inner = open_scope(&scope);
      const Flow flow = run(loop.bodies[1], *inner);
      close_scope(inner);
      return flow;
    }
    return Flow::kNext;
  }

  void set(RenderScope& scope, const std::string& name, Value value) {
    rendering_.charge(1 + scope.names.size() / 8);
    const auto known = std::ranges::find(scope.names, name, &std::pair<std::string, Value>::first);
    if (known != scope.names.end())
      known->second = std::move(value);
    else
      scope.names.emplace_back(name, std::move(value));
  }

  void assign(const AssignTarget& target, Value value, RenderScope& scope) {
    if (!target.parts.empty()) {
      const std::vector<Value> items = items_of(rendering_, value);
      if (items.size() != target.parts.size()) {
        rendering_.place = target.place;
        rendering_.fail("{} names for {} values", target.parts.size(), items.size());
      }
      for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    } else if (target.member.empty()) {
      set(scope, target.name, std::move(value));
    } else {
      rendering_.place = target.place;
      const Value object = lookup(target.name, scope);
      const auto* space = object.get_if<NamespaceValue*>();
      if (!space) rendering_.fail("'{}' is no namespace: its members cannot be set", target.name);
      set_member(**space, target.member, std::move(value));
    }
  }

  void set_member(NamespaceValue& space, const std::string& name, Value value) {
    if (name.starts_with('_'))
      rendering_.fail("a namespace cannot have the member '{}', which begins with _", name);
    rendering_.charge(8 + space.members.size());
    const auto known =
        std::ranges::find(space.members, name, &std::pair<std::string, Value>::first);
    if (known != space.members.end())
      known->second = std::move(value);
    else
      space.members.emplace_back(name, std::move(value));
  }

  // -------------------------------------------------------------------------------- expressions
  Value lookup(const std::string& name, const RenderScope& scope) {
    for (const RenderScope* at = &scope; at; at = at->outer) {
      rendering_.charge(1 + at->names.size() / 8);
      for (const auto& [known, value] : at->names)
        if (known == name) return value;
    }
    for (const auto& [known, value] : variables_)
      if (known == name) return value;
    const auto* global = std::ranges::find(kGlobals, std::string_view(name));
    if (global != kGlobals.end()) return Value(FunctionValue{*global});
    if (name == "lipsum" || name == "cycler" || name == "joiner")
      rendering_.fail("the function '{}' is not supported", name);
    return make_undefined(fmt::format("'{}' is undefined", name));
  }

  Value eval(const Expression& expression, RenderScope& scope) {
    const Depth depth(*this);
    rendering_.place = expression.place;
    rendering_.charge(8);
    switch (expression.op) {
      case Operator::kConstant:
        return expression.constant;
      case Operator::kName:
        return lookup(expression.name, scope);
      case Operator::kBlockText:
        return block_text_;
      case Operator::kAbsent:
        return make_undefined("the value of an if without else is undefined");
      case Operator::kAnd:
      case Operator::kOr: {
        Value left = eval(expression.operands[0], scope);
        const bool decided = is_true(left) == (expression.op == Operator::kOr);
        return decided ? left : eval(expression.operands[1], scope);
      }
      case Operator::kIf: {
        const bool holds = is_true(eval(expression.operands[1], scope));
        return eval(expression.operands[holds ? 0 : 2], scope);
      }
      case Operator::kNot:
        return Value(!is_true(eval(expression.operands[0], scope)));
      case Operator::kCompare:
        return compare(expression, scope);
      case Operator::kSlice:
        return slice(expression, scope);
      case Operator::kCall:
      case Operator::kFilter:
      case Operator::kTest:
        return apply(expression, scope);
      default:
        return combine(expression, scope);
    }
  }

  // The operators that evaluate all of their operands, in order.
  Value combine(const Expression& expression, RenderScope& scope) {
    std::vector<Value> values;
    for (const Expression& operand : expression.operands) values.push_back(eval(operand, scope));
    rendering_.place = expression.place;
    switch (expression.op) {
      case Operator::kList:
        return rendering_.list(std::move(values));
      case Operator::kTuple:
        return rendering_.list(std::move(values), ListValue::Kind::kTuple);
      case Operator::kDict: {
        std::vector<std::pair<Value, Value>> items;
        for (size_t i = 0; i + 1 < values.size(); i += 2)
          items.emplace_back(values[i], values[i + 1]);
        return rendering_.dict(std::move(items));
      }
      case Operator::kMember:
        return member_of(rendering_, values[0], expression.name);
      case Operator::kItem:
        return item_of(rendering_, values[0], values[1]);
      case Operator::kNegative:
        return arithmetic(rendering_, "-", Value(int64_t{0}), values[0]);
      case Operator::kPositive:
        return arithmetic(rendering_, "+", Value(int64_t{0}), values[0]);
      case Operator::kConcat: {
        std::string text;
        for (const Value& value : values) text += str_of(rendering_, value);
        return rendering_.text(std::move(text));
      }
      default:
        return arithmetic(rendering_, expression.name, values[0], values[1]);
    }
  }

  Value compare(const Expression& expression, RenderScope& scope) {
    Value left = eval(expression.operands[0], scope);
    for (size_t i = 0; i < expression.names.size(); ++i) {
      Value right = eval(expression.operands[i + 1], scope);
      rendering_.place = expression.place;
      if (!holds(expression.names[i], left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  bool holds(std::string_view name, const Value& left, const Value& right) {
    if (name == "==") return equal(rendering_, left, right);
    if (name == "!=") return !equal(rendering_, left, right);
    if (name == "<") return is_less(rendering_, left, right);
    if (name == ">") return is_less(rendering_, right, left);
    if (name == "<=") return is_less(rendering_, left, right) || equal(rendering_, left, right);
    if (name == ">=") return is_less(rendering_, right, left) || equal(rendering_, left, right);
    return contains(rendering_, right, left) == (name == "in");
  }

  Value slice(const Expression& expression, RenderScope& scope) {
    const Value object = eval(expression.operands[0], scope);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (expression.operands[i + 1].op == Operator::kAbsent) continue;
      const Value bound = eval(expression.operands[i + 1], scope);
      rendering_.place = expression.place;
      if (!bound.is<None>()) bounds[i] = integer_argument(rendering_, bound, "a part of a slice");
    }
    rendering_.place = expression.place;
    return slice_of(rendering_, object, bounds[0], bounds[1], bounds[2].value_or(1));
  }

  // A call, a filter or a test.
  Value apply(const Expression& expression, RenderScope& scope) {
    const Value subject = eval(expression.operands[0], scope);
    Arguments arguments;
    const size_t first_named = expression.operands.size() - expression.names.size();
    for (size_t i = 1; i < expression.operands.size(); ++i) {
      Value value = eval(expression.operands[i], scope);
      if (i < first_named)
        arguments.values.push_back(std::move(value));
      else
        arguments.named.emplace_back(expression.names[i - first_named], std::move(value));
    }
    rendering_.place = expression.place;
    if (expression.op == Operator::kFilter)
      return apply_filter(rendering_, expression.name, subject, arguments);
    if (expression.op == Operator::kTest)
      return Value(apply_test(rendering_, expression.name, subject, arguments));
    if (const auto* method = subject.get_if<std::shared_ptr<const MethodValue>>())
      return call_method(rendering_, **method, arguments);
    if (const auto* macro = subject.get_if<const MacroValue*>())
      return call_macro(**macro, arguments);
    if (const auto* function = subject.get_if<FunctionValue>())
      return call_function(function->name, arguments);
    if (const auto* undefined = subject.get_if<Undefined>())
      rendering_.fail("{}", *undefined->message);
    rendering_.fail("a value of type {} cannot be called", type_name(subject));
  }

  Value call_macro(const MacroValue& macro, const Arguments& arguments) {
    const Statement& definition = *macro.definition;
    const std::vector<std::string>& names = definition.parameters;
    const SourcePlace place = rendering_.place;
    if (arguments.values.size() > names.size())
      rendering_.fail("the macro {} takes at most {} arguments, not {}", definition.text,
                      names.size(), arguments.values.size());
    for (const auto& [name, value] : arguments.named)
      if (std::ranges::find(names, name) == names.end())
        rendering_.fail("the macro {} has no parameter '{}'", definition.text, name);
    RenderScope* inner = open_scope(macro.scope);
    const size_t first_default = names.size() - definition.expressions.size();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto named =
          std::ranges::find(arguments.named, names[i], &std::pair<std::string, Value>::first);
      if (i < arguments.values.size() && named != arguments.named.end())
        rendering_.fail("the macro {}: '{}' is given twice", definition.text, names[i]);
      if (i < arguments.values.size())
        set(*inner, names[i], arguments.values[i]);
      else if (named != arguments.named.end())
        set(*inner, names[i], named->second);
      else if (i >= first_default)
        set(*inner, names[i], eval(definition.expressions[i - first_default], *inner));
      else
        set(*inner, names[i],
            make_undefined(fmt::format("parameter '{}' was not provided", names[i])));
    }
    Value text = block_text(definition.bodies[0], *inner);
    close_scope(inner);
    rendering_.place = place;
    return text;
  }

  Value call_function(std::string_view name, const Arguments& arguments) {
    if (name == "range") return range(arguments);
    if (name == "strftime_now") return strftime_now(arguments);
    if (name == "raise_exception") {
      const Parameters given(rendering_, name, arguments, {"message"}, 1);
      rendering_.fail("the template refuses: {}", str_of(rendering_, *given[0]));
    }
    std::vector<std::pair<Value, Value>> items;
    if (arguments.values.size() > 1) rendering_.fail("{} takes at most one argument", name);
    if (!arguments.values.empty()) {
      const DictValue* dict = arguments.values[0].dict();
      if (!dict)
        rendering_.fail("{} of a {} is not supported", name, type_name(arguments.values[0]));
      items = dict->items;
    }
    for (const auto& [key, value] : arguments.named) items.emplace_back(make_string(key), value);
    if (name == "dict") return rendering_.dict(std::move(items));
    spaces_.emplace_back();
    rendering_.charge(64);
    for (auto& [key, value] : items)
      set_member(spaces_.back(), string_argument(rendering_, key, "a name in a namespace"), value);
    return Value(&spaces_.back());
  }

  Value range(const Arguments& arguments) {
    int64_t bounds[3] = {0, 0, 1};
    const std::vector<Value>& given = arguments.values;
    if (given.empty() || given.size() > 3 || !arguments.named.empty())
      rendering_.fail("range takes 1 to 3 arguments");
    for (size_t i = 0; i < given.size(); ++i)
      bounds[given.size() == 1 ? 1 : i] = integer_argument(rendering_, given[i], "range");
    const auto [start, stop, step] = bounds;
    if (step == 0) rendering_.fail("range cannot have the step 0");
    std::vector<Value> items;
    for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
      items.emplace_back(Value(at));
      if (static_cast<int64_t>(items.size()) > kMaxRange)
        rendering_.fail("the range has more than {} numbers", kMaxRange);
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    return rendering_.list(std::move(items), ListValue::Kind::kRange);
  }

  Value strftime_now(const Arguments& arguments) {
    const Parameters given(rendering_, "strftime_now", arguments, {"format"}, 1);
    const std::string& format = string_argument(rendering_, *given[0], "strftime_now");
    if (format.size() > 200) rendering_.fail("strftime_now: the format is longer than 200 bytes");
    result_.asked_for_time = true;
    std::array<char, 4096> buffer;
    // A mark in front tells an empty result from one that does not fit.
    const size_t size = std::strftime(buffer.data(), buffer.size(), ("|" + format).c_str(), &now_);
    if (size == 0) rendering_.fail("strftime_now: the result is too long");
    return rendering_.text(replace_invalid_utf8(std::string_view(buffer.data() + 1, size - 1)));
  }

  Rendering& rendering_;
  const Variables& variables_;
  const std::tm& now_;
  Rendered result_;
  std::string* out_ = &result_.text;
  Value block_text_;
  int depth_ = 0;
  int64_t loop_depth_ = 0;
  std::vector<std::unique_ptr<RenderScope>> scopes_;
  std::deque<MacroValue> macros_;
  std::deque<NamespaceValue> spaces_;
};

}  // namespace

Value namespace_member(const NamespaceValue& space, const std::string& name) {
  for (const auto& [known, value] : space.members)
    if (known == name) return value;
  return make_undefined(
      fmt::format("'Namespace' object has no attribute '{}'", printable(name.substr(0, 80))));
}

Rendered render(const std::vector<Statement>& statements, Rendering& rendering,
                const Variables& variables, const std::tm& now) {
  return TemplateRenderer(rendering, variables, now).run(statements);
}

}  // namespace ashlar::data::jinja
