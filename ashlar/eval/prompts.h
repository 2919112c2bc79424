// Prompts in a file of JSON lines: one object a line, whose member "prompt" is a text; or other
// lines of JSON, such as chats (data/chat_row.h), which are not looked at here.
//
// Accepts  what data/json_row.h does; other members are left alone; empty lines hold no prompt.
// Errors   kData, "FILE line N: ..." for the first line that is not such an object, and for a file
//          without lines.
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
// The lines that are not blank.  expected: one of them, for messages.
std::vector<Prompt> lines_of(std::string_view lines, const std::string& path,
                             std::string_view expected);
// A chat as data::chat_of_row reads it, of one that may also be the list of its messages alone.
std::string as_chat_row(const std::string& chat);

}  // namespace ashlar::eval
