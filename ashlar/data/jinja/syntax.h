// The syntax tree of a template, and the parser that makes it.
//
// Source   Jinja2 3.1.6: its lexer, with trim_blocks and lstrip_blocks, and its grammar; the tags
//          break, continue and generation of Hugging Face transformers 5.
// Refuses  by name: the tags include, import, from, extends, block, call, do, autoescape, trans and
//          any unknown one; recursive loops; arguments with * and **; identifiers beyond ASCII.
// Errors   kData "NAME line L column C: ...".
// Limits   kMaxTemplateBytes; expressions and blocks nest at most kMaxNesting deep.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/data/jinja/value.h"

namespace ashlar::data::jinja {

inline constexpr size_t kMaxTemplateBytes = 1 << 20;
inline constexpr int kMaxNesting = 200;

struct SourcePlace {
  int32_t line = 1, column = 1;  // in characters, from 1
};

[[noreturn]] void fail_at(const std::string& name, SourcePlace place, std::string_view message);

enum class Operator : uint8_t {
  kConstant,   // constant
  kName,       // name
  kList,       // operands
  kTuple,      // operands
  kDict,       // operands: key, value, key, value, ...
  kMember,     // operands[0].name
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; absent ones are kAbsent
  kAbsent,     // no expression
  kBlockText,  // the text of the block that a filter is applied to
  kCall,       // operands[0](operands[1], ...), of which the last have names
  kFilter,     // operands[0] | name(operands[1], ...), of which the last have names
  kTest,       // operands[0] is name(operands[1], ...), of which the last have names
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kIf,       // operands[0] if operands[1] else operands[2]
  kCompare,  // operands[0] names[0] operands[1] names[1] operands[2]: all hold
  kConcat,   // ~, of all operands
  kBinary,   // operands[0] name operands[1]: + - * / // % **
};

struct Expression {
  Operator op = Operator::kAbsent;
  SourcePlace place = {};
  std::string name = {};
  Value constant = {};
  std::vector<Expression> operands = {};
  std::vector<std::string> names = {};
};

// The place that a statement assigns to: a name, a member of a namespace, or several of them.
struct AssignTarget {
  SourcePlace place = {};
  std::string name = {}, member = {};
  std::vector<AssignTarget> parts = {};  // a tuple, if not empty
};

enum class StatementTag : uint8_t {
  kText,         // text
  kOutput,       // expressions
  kIf,           // expressions[i] decides on bodies[i]; one more body is that of else
  kFor,          // targets[0] in expressions[0], if expressions[1]; bodies: items, no item
  kSet,          // targets[0] = expressions[0]
  kSetBlock,     // targets[0] = bodies[0] as text, through the filter expressions[0] if given
  kWith,         // targets[i] = expressions[i], then bodies[0]
  kMacro,        // text(parameters); the last expressions.size() parameters have these defaults
  kFilterBlock,  // expressions[0] of bodies[0] as text
  kGeneration,   // bodies[0], which is what the assistant writes
  kBreak,
  kContinue,
};

struct Statement {
  StatementTag tag;
  SourcePlace place;
  std::string text = {};
  std::vector<std::string> parameters = {};
  std::vector<Expression> expressions = {};
  std::vector<AssignTarget> targets = {};
  std::vector<std::vector<Statement>> bodies = {};
};

std::vector<Statement> parse_template(std::string_view source, const std::string& name);

}  // namespace ashlar::data::jinja
