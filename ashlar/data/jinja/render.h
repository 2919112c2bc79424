// Renders a template: walks its syntax tree with Python's values.
//
// Source   Jinja2 3.1.6 in a sandbox whose values do not change (ImmutableSandboxedEnvironment),
//          as Hugging Face transformers 5 sets it up.
// Limits   kMaxRenderDepth calls inside each other, and the work of a Rendering (rendering.h),
//          which bounds time and memory.
// Errors   kData "NAME line L column C: ...": a value that the template does not find, a feature
//          that is not supported, the message of raise_exception.
#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/data/jinja/rendering.h"
#include "ashlar/data/jinja/syntax.h"
#include "ashlar/data/jinja/value.h"

namespace ashlar::data::jinja {

inline constexpr int kMaxRenderDepth = 1000;

// The members of a namespace, the only value that changes.
struct NamespaceValue {
  std::vector<std::pair<std::string, Value>> members;
};
Value namespace_member(const NamespaceValue& space, const std::string& name);

struct Rendered {
  std::string text;
  // The bytes [first, second) of `text` that {% generation %} blocks made, in order.
  std::vector<std::pair<size_t, size_t>> generated;
  bool asked_for_time = false;  // strftime_now was called
};

using Variables = std::vector<std::pair<std::string, Value>>;

Rendered render(const std::vector<Statement>& statements, Rendering& rendering,
                const Variables& variables, const std::tm& now);

}  // namespace ashlar::data::jinja
