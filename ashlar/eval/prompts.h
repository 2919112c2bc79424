// Prompts in a file of JSON lines: one object a line, whose member "prompt" is a text.
//
// Accepts  what data/json_row.h does; other members are left alone; empty lines hold no prompt.
// Errors   kData, "FILE line N: ..." for the first line that is not such an object, and for a file
//          without prompts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ashlar::eval {

struct Prompt {
  std::string text;
  std::string place;  // for messages: "prompts.jsonl line 3"
};

std::vector<Prompt> parse_prompts(std::string_view lines, const std::string& path);

}  // namespace ashlar::eval
