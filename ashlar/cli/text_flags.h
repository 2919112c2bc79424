// The flags of commands that read text.
#pragma once

#include <string>
#include <vector>

#include "ashlar/cli/command.h"
#include "ashlar/data/text_source.h"

namespace ashlar::cli {

struct TextFlags {
  std::vector<std::string> inputs;
  std::string documents = "file", format;
  bool skip_bad = false;
};
void add_text_flags(CLI::App& app, TextFlags& flags);
data::TextOptions options_of(const TextFlags& flags);  // kConfig for a word that is not known

}  // namespace ashlar::cli
