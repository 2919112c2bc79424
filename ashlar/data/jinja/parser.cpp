// How it works.  One function for each rule of Jinja's grammar; the functions of expressions stand
// in the order of precedence, weakest first.  Nesting counts in enter(), so that no template can
// exhaust the stack, here or in the renderer.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/data/jinja/lexer.h"
#include "ashlar/data/jinja/syntax.h"

namespace ashlar::data::jinja {
namespace {

using Kind = TemplateToken::Kind;

constexpr int kMaxOperators = 500;  // of one expression
constexpr std::array<std::string_view, 9> kReserved = {"and", "else", "elif", "if",       "in",
                                                       "is",  "not",  "or",   "recursive"};

class TemplateParser {
 public:
  TemplateParser(std::vector<TemplateToken> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  std::vector<Statement> run() { return statements({}); }

 private:
  // Counts nesting while it exists.
  class Nesting {
   public:
    explicit Nesting(TemplateParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting)
        parser_.fail(fmt::format("the template nests deeper than {} levels", kMaxNesting));
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TemplateParser& parser_;
  };

  const TemplateToken& now() const { return tokens_[at_]; }
  const TemplateToken& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  TemplateToken take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is(std::string_view symbol) const {
    return now().kind == Kind::kOperator && now().text == symbol;
  }
  bool is_word(std::string_view word) const {
    return now().kind == Kind::kName && now().text == word;
  }
  bool skip_if(std::string_view symbol) { return is(symbol) && (take(), true); }
  bool skip_word(std::string_view word) { return is_word(word) && (take(), true); }

  [[noreturn]] void fail(std::string_view message) const { fail_at(name_, now().place, message); }
  [[noreturn]] void fail_expected(std::string_view expected) const {
    fail(fmt::format("found {}; expected {}", shown_token(), expected));
  }
  std::string shown_token() const {
    switch (now().kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kVariableEnd:
        return "}}";
      case Kind::kBlockEnd:
        return "%}";
      case Kind::kText:
      case Kind::kVariableBegin:
      case Kind::kBlockBegin:
        return "the end of the tag";
      default:
        return fmt::format("'{}'", printable(now().text.substr(0, 40)));
    }
  }
  void expect(std::string_view symbol) {
    if (!skip_if(symbol)) fail_expected(fmt::format("'{}'", symbol));
  }
  void expect_word(std::string_view word) {
    if (!skip_word(word)) fail_expected(fmt::format("'{}'", word));
  }
  void expect_block_end() {
    if (now().kind != Kind::kBlockEnd) fail_expected("%}");
    take();
  }
  std::string take_name() {
    if (now().kind != Kind::kName) fail_expected("a name");
    return take().text;
  }

  // ------------------------------------------------------------------------------- statements
  // Up to a tag whose name is in `ends`, which is taken but for its %}; the end of the template is
  // an end if `ends` is empty.
  std::vector<Statement> statements(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    const SourcePlace begin = now().place;
    std::vector<Statement> out;
    while (now().kind != Kind::kEnd) {
      const SourcePlace place = now().place;
      TemplateToken token = take();
      if (token.kind == Kind::kText) {
        out.push_back({StatementTag::kText, place, std::move(token.text)});
      } else if (token.kind == Kind::kVariableBegin) {
        Statement output{StatementTag::kOutput, place};
        output.expressions.push_back(tuple(true));
        if (now().kind != Kind::kVariableEnd) fail_expected("}}");
        take();
        out.push_back(std::move(output));
      } else {
        if (std::ranges::find(ends, now().text) != ends.end() && now().kind == Kind::kName)
          return out;
        out.push_back(statement(place));
      }
    }
    if (ends.size() > 0)
      fail_at(name_, begin,
              fmt::format("the block has no end; expected {{% {} %}}", *(ends.end() - 1)));
    return out;
  }

  // A body up to {% END %}.
  std::vector<Statement> body(std::string_view end) {
    expect_block_end();
    std::vector<Statement> inside = statements({end});
    take();
    expect_block_end();
    return inside;
  }

  Statement statement(SourcePlace place) {
    const std::string word = take_name();
    if (word == "if") return if_block(place);
    if (word == "for") return for_block(place);
    if (word == "set") return set_block(place);
    if (word == "macro") return macro_block(place);
    if (word == "with") return with_block(place);
    if (word == "filter") return filter_block(place);
    if (word == "generation") {
      Statement out{StatementTag::kGeneration, place};
      const int loops = std::exchange(loops_, 0);
      out.bodies.push_back(body("endgeneration"));
      loops_ = loops;
      return out;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail_at(name_, place, fmt::format("the tag {} is outside of a loop", word));
      expect_block_end();
      return {word == "break" ? StatementTag::kBreak : StatementTag::kContinue, place};
    }
    fail_at(name_, place, fmt::format("the tag '{}' is not supported", printable(word)));
  }

  Statement if_block(SourcePlace place) {
    Statement out{StatementTag::kIf, place};
    out.expressions.push_back(tuple(false));
    while (true) {
      expect_block_end();
      out.bodies.push_back(statements({"elif", "else", "endif"}));
      const std::string word = take().text;
      if (word == "elif") {
        out.expressions.push_back(tuple(false));
        continue;
      }
      if (word == "else") out.bodies.push_back(body("endif"));
      if (word == "endif") expect_block_end();
      return out;
    }
  }

  Statement for_block(SourcePlace place) {
    Statement out{StatementTag::kFor, place};
    out.targets.push_back(target(true));
    expect_word("in");
    out.expressions.push_back(tuple(false));
    if (skip_word("if")) out.expressions.push_back(expression());
    if (is_word("recursive")) fail("recursive loops are not supported");
    expect_block_end();
    ++loops_;
    out.bodies.push_back(statements({"else", "endfor"}));
    --loops_;
    const std::string word = take().text;
    if (word == "else") out.bodies.push_back(body("endfor"));
    if (word == "endfor") expect_block_end();
    return out;
  }

  Statement set_block(SourcePlace place) {
    Statement out{StatementTag::kSet, place};
    out.targets.push_back(target(true));
    if (skip_if("=")) {
      out.expressions.push_back(tuple(true));
      expect_block_end();
      return out;
    }
    out.tag = StatementTag::kSetBlock;
    if (is("|")) out.expressions.push_back(filters({Operator::kBlockText, now().place}));
    out.bodies.push_back(separate_body("endset"));
    return out;
  }

  // A body in which break and continue do not reach a loop around it.
  std::vector<Statement> separate_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    std::vector<Statement> inside = body(end);
    loops_ = loops;
    return inside;
  }

  Statement macro_block(SourcePlace place) {
    Statement out{StatementTag::kMacro, place, take_name()};
    expect("(");
    while (!is(")")) {
      if (!out.parameters.empty()) expect(",");
      if (is(")")) break;
      out.parameters.push_back(target_name());
      if (skip_if("="))
        out.expressions.push_back(expression());
      else if (!out.expressions.empty())
        fail("a parameter without a default follows one with a default");
    }
    expect(")");
    const bool outer = std::exchange(in_macro_, true);
    out.bodies.push_back(separate_body("endmacro"));
    in_macro_ = outer;
    return out;
  }

  Statement with_block(SourcePlace place) {
    Statement out{StatementTag::kWith, place};
    while (now().kind != Kind::kBlockEnd) {
      if (!out.targets.empty()) expect(",");
      out.targets.push_back(target(false));
      expect("=");
      out.expressions.push_back(expression());
    }
    out.bodies.push_back(body("endwith"));
    return out;
  }

  Statement filter_block(SourcePlace place) {
    Statement out{StatementTag::kFilterBlock, place};
    Expression first{Operator::kFilter, now().place, dotted_name()};
    first.operands.push_back({Operator::kBlockText, place});
    if (is("(")) arguments(first);
    out.expressions.push_back(filters(std::move(first)));
    out.bodies.push_back(separate_body("endfilter"));
    return out;
  }

  std::string target_name() {
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                                   "True", "False", "None"};
    const bool constant = std::ranges::find(kConstants, now().text) != kConstants.end();
    const bool reserved = std::ranges::find(kReserved, now().text) != kReserved.end();
    if (now().kind == Kind::kName && (constant || reserved))
      fail(fmt::format("cannot assign to '{}'", now().text));
    return take_name();
  }

  AssignTarget one_target() {
    const Nesting nesting(*this);
    if (skip_if("(")) {
      AssignTarget inner = target(true);
      expect(")");
      return inner;
    }
    AssignTarget out{now().place, target_name()};
    if (skip_if(".")) out.member = take_name();
    return out;
  }

  AssignTarget target(bool with_tuple) {
    AssignTarget first = one_target();
    if (!with_tuple || !is(",")) return first;
    AssignTarget out{first.place};
    out.parts.push_back(std::move(first));
    while (skip_if(",")) {
      if (is_word("in") || is("=") || is(")")) break;
      out.parts.push_back(one_target());
    }
    return out;
  }

  // ------------------------------------------------------------------------------ expressions
  Expression binary(std::string name, SourcePlace place, Expression left, Expression right,
                    Operator op = Operator::kBinary) {
    // A long chain of operators is as deep as it is long.
    if (++chain_ > kMaxOperators) fail("the expression has too many operators");
    Expression out{op, place, std::move(name)};
    out.operands.push_back(std::move(left));
    out.operands.push_back(std::move(right));
    return out;
  }

  // Expressions separated by commas make a tuple.
  Expression tuple(bool with_condition) {
    const SourcePlace place = now().place;
    chain_ = 0;
    Expression first = with_condition ? expression() : either();
    if (!is(",")) return first;
    Expression out{Operator::kTuple, place};
    out.operands.push_back(std::move(first));
    while (skip_if(",")) {
      if (now().kind == Kind::kBlockEnd || now().kind == Kind::kVariableEnd || is(")")) break;
      out.operands.push_back(with_condition ? expression() : either());
    }
    return out;
  }

  Expression expression() {
    const Nesting nesting(*this);
    Expression out = either();
    while (is_word("if")) {
      Expression choice{Operator::kIf, take().place};
      choice.operands.push_back(std::move(out));
      choice.operands.push_back(either());
      choice.operands.push_back(skip_word("else") ? expression() : Expression{});
      if (++chain_ > kMaxOperators) fail("the expression has too many operators");
      out = std::move(choice);
    }
    return out;
  }

  Expression either() {
    Expression left = both();
    while (is_word("or")) {
      const SourcePlace place = take().place;
      left = binary("or", place, std::move(left), both(), Operator::kOr);
    }
    return left;
  }

  Expression both() {
    Expression left = negation();
    while (is_word("and")) {
      const SourcePlace place = take().place;
      left = binary("and", place, std::move(left), negation(), Operator::kAnd);
    }
    return left;
  }

  Expression negation() {
    if (!is_word("not")) return comparison();
    const Nesting nesting(*this);
    Expression out{Operator::kNot, take().place};
    out.operands.push_back(negation());
    return out;
  }

  std::optional<std::string> comparing() {
    static constexpr std::array<std::string_view, 6> kSymbols = {"==", "!=", "<", "<=", ">", ">="};
    if (now().kind == Kind::kOperator && std::ranges::find(kSymbols, now().text) != kSymbols.end())
      return take().text;
    if (skip_word("in")) return "in";
    if (is_word("not") && ahead().kind == Kind::kName && ahead().text == "in") {
      take();
      take();
      return "not in";
    }
    return std::nullopt;
  }

  Expression comparison() {
    Expression first = sum();
    Expression out{Operator::kCompare, now().place};
    while (auto symbol = comparing()) {
      out.names.push_back(*symbol);
      out.operands.push_back(sum());
    }
    if (out.names.empty()) return first;
    out.operands.insert(out.operands.begin(), std::move(first));
    return out;
  }

  Expression sum() {
    Expression left = concatenation();
    while (is("+") || is("-")) {
      const TemplateToken token = take();
      left = binary(token.text, token.place, std::move(left), concatenation());
    }
    return left;
  }

  Expression concatenation() {
    Expression first = product();
    if (!is("~")) return first;
    Expression out{Operator::kConcat, now().place};
    out.operands.push_back(std::move(first));
    while (skip_if("~")) out.operands.push_back(product());
    return out;
  }

  Expression product() {
    Expression left = power();
    while (is("*") || is("/") || is("//") || is("%")) {
      const TemplateToken token = take();
      left = binary(token.text, token.place, std::move(left), power());
    }
    return left;
  }

  Expression power() {
    Expression left = unary(true);
    while (is("**")) {
      const TemplateToken token = take();
      left = binary(token.text, token.place, std::move(left), unary(true));
    }
    return left;
  }

  Expression unary(bool with_filters) {
    const Nesting nesting(*this);
    Expression out;
    if (is("-") || is("+")) {
      out.op = is("-") ? Operator::kNegative : Operator::kPositive;
      out.place = take().place;
      out.operands.push_back(unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filters ? filters(std::move(out)) : out;
  }

  Expression constant(Value value) {
    return {Operator::kConstant, take().place, "", std::move(value)};
  }

  Expression primary() {
    const TemplateToken& token = now();
    if (token.kind == Kind::kName) return name();
    if (token.kind == Kind::kString) {
      const SourcePlace place = token.place;
      std::string text;
      while (now().kind == Kind::kString) text += take().text;
      return {Operator::kConstant, place, "", make_string(std::move(text))};
    }
    if (token.kind == Kind::kInteger || token.kind == Kind::kFloat) return number(token);
    if (is("(")) return parenthesis();
    if (is("[")) return sequence(Operator::kList, "]");
    if (is("{")) return sequence(Operator::kDict, "}");
    fail_expected("an expression");
  }

  Expression name() {
    const std::string& word = now().text;
    if (word == "true" || word == "True") return constant(Value(true));
    if (word == "false" || word == "False") return constant(Value(false));
    if (word == "none" || word == "None") return constant(Value(None{}));
    if (in_macro_ && (word == "varargs" || word == "kwargs" || word == "caller"))
      fail(fmt::format("'{}' of a macro is not supported", word));
    const SourcePlace place = now().place;
    return {Operator::kName, place, take().text};
  }

  Expression number(const TemplateToken& token) {
    const char* end = token.text.data() + token.text.size();
    int64_t integer = 0;
    double real = 0;
    const bool whole = token.kind == Kind::kInteger;
    const auto read = whole ? std::from_chars(token.text.data(), end, integer)
                            : std::from_chars(token.text.data(), end, real);
    if (read.ec != std::errc{} || read.ptr != end)
      fail(fmt::format("{} is not a number of 64 bits", printable(token.text.substr(0, 40))));
    return constant(whole ? Value(integer) : Value(real));
  }

  Expression parenthesis() {
    const SourcePlace place = take().place;
    Expression out{Operator::kTuple, place};
    if (skip_if(")")) return out;
    Expression first = expression();
    if (skip_if(")")) return first;
    out.operands.push_back(std::move(first));
    while (!is(")")) {
      expect(",");
      if (!is(")")) out.operands.push_back(expression());
    }
    take();
    return out;
  }

  Expression sequence(Operator op, std::string_view end) {
    Expression out{op, take().place};
    while (!is(end)) {
      if (!out.operands.empty()) expect(",");
      if (is(end)) break;
      out.operands.push_back(expression());
      if (op == Operator::kList) continue;
      expect(":");
      out.operands.push_back(expression());
    }
    take();
    return out;
  }

  Expression postfix(Expression out) {
    while (is(".") || is("[") || is("(")) {
      if (++chain_ > kMaxOperators) fail("the expression has too many operators");
      out = is("(") ? call(std::move(out)) : member(std::move(out));
    }
    return out;
  }

  Expression call(Expression callee) {
    Expression out{Operator::kCall, now().place};
    out.operands.push_back(std::move(callee));
    arguments(out);
    return out;
  }

  Expression member(Expression object) {
    const TemplateToken token = take();
    Expression out{Operator::kMember, token.place};
    if (token.text == ".") {
      out.place = now().place;
      if (now().kind == Kind::kInteger) {
        out.op = Operator::kItem;
        out.operands.push_back(std::move(object));
        out.operands.push_back(number(now()));
        return out;
      }
      out.name = take_name();
      out.operands.push_back(std::move(object));
      return out;
    }
    out.operands.push_back(std::move(object));
    index(out);
    expect("]");
    return out;
  }

  // The expressions between [ and ].
  void index(Expression& out) {
    const auto part = [&] {
      return is(":") || is("]") ? Expression{Operator::kAbsent, now().place} : expression();
    };
    out.op = Operator::kItem;
    if (is("]")) fail_expected("an index");
    out.operands.push_back(part());
    if (!is(":")) {
      if (is(",")) fail("an index of several parts is not supported");
      return;
    }
    out.op = Operator::kSlice;
    for (int i = 0; i < 2; ++i)
      out.operands.push_back(skip_if(":") ? part() : Expression{Operator::kAbsent, now().place});
  }

  void arguments(Expression& out) {
    expect("(");
    bool first = true;
    while (!is(")")) {
      if (!first) expect(",");
      first = false;
      if (is(")")) break;
      if (is("*") || is("**")) fail("arguments with * and ** are not supported");
      const bool named =
          now().kind == Kind::kName && ahead().kind == Kind::kOperator && ahead().text == "=";
      if (!named && !out.names.empty()) fail("an argument without a name follows one with a name");
      if (named) {
        out.names.push_back(take().text);
        take();
      }
      out.operands.push_back(expression());
    }
    take();
  }

  std::string dotted_name() {
    std::string name = take_name();
    while (skip_if(".")) (name += '.') += take_name();
    return name;
  }

  Expression filters(Expression out) {
    while (is("|") || is_word("is") || is("(")) {
      if (++chain_ > kMaxOperators) fail("the expression has too many operators");
      if (is("("))
        out = call(std::move(out));
      else if (is("|"))
        out = filter(std::move(out));
      else
        out = test(std::move(out));
    }
    return out;
  }

  Expression filter(Expression input) {
    take();
    const SourcePlace place = now().place;
    Expression out{Operator::kFilter, place, dotted_name()};
    out.operands.push_back(std::move(input));
    if (is("(")) arguments(out);
    return out;
  }

  Expression test(Expression input) {
    take();
    const bool negated = skip_word("not");
    const SourcePlace place = now().place;
    Expression out{Operator::kTest, place, dotted_name()};
    out.operands.push_back(std::move(input));
    const bool begins = now().kind == Kind::kName || now().kind == Kind::kString ||
                        now().kind == Kind::kInteger || now().kind == Kind::kFloat || is("[") ||
                        is("{");
    if (is("(")) {
      arguments(out);
    } else if (begins && !is_word("else") && !is_word("or") && !is_word("and")) {
      if (is_word("is")) fail("a test of a test needs parentheses");
      // As in Jinja, any other name is the test's argument: "x is defined if y" has two.
      out.operands.push_back(postfix(primary()));
    }
    if (!negated) return out;
    Expression inverse{Operator::kNot, place};
    inverse.operands.push_back(std::move(out));
    return inverse;
  }

  std::vector<TemplateToken> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  int chain_ = 0;  // operators of this expression
  bool in_macro_ = false;
};

}  // namespace

std::vector<Statement> parse_template(std::string_view source, const std::string& name) {
  return TemplateParser(tokens_of(source, name), name).run();
}

}  // namespace ashlar::data::jinja
