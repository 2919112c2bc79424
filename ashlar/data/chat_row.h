// Rows of training data as JSON objects: chats, and prompts with their completions.
//
//   chat        {"messages": [{"role", "content", ...}]}
//               {"conversations": [{"from", "value"}]}, or with "role" and "content"
//               {"instruction", "input", "output"}; "input" may be absent or empty
//               {"prompt", "completion"}: two strings, or two lists of messages
//               each may have "tools", a list or a string of JSON, and "system", a string
//   completion  {"prompt", "completion"} or {"instruction", "input", "output"}: strings
//
// Errors  kData "WHERE: found; expected": not JSON, none of these, a number of more than 64 bits,
//         nesting deeper than kMaxRowDepth, more than kMaxRowValues values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ashlar/core/json.h"

namespace ashlar::data {

inline constexpr int kMaxRowDepth = 64;
// An object is searched from its first member on, so that many members take quadratic time.
inline constexpr int64_t kMaxRowValues = 1 << 16;

// {"messages": [...], "tools": [...] or null, "prompt_messages": N}: the messages with the roles
// that templates know, of which the first N are a prompt that is not to be learned.
Ordered chat_of_row(std::string_view line, const std::string& where);

struct CompletionRow {
  std::string prompt, completion;
};
CompletionRow completion_of_row(std::string_view line, const std::string& where);

}  // namespace ashlar::data
