#include "ashlar/cli/text_flags.h"

#include <CLI/CLI.hpp>

namespace ashlar::cli {

void add_text_flags(CLI::App& app, TextFlags& flags) {
  app.add_option("--input", flags.inputs, "text or JSONL files, .gz too")
      ->required()
      ->type_name("FILE");
  app.add_option("--documents", flags.documents,
                 "what a document of plain text is: file, blank-line (what blank lines and form "
                 "feeds separate) or line; a row of JSONL is one")
      ->capture_default_str();
  app.add_option("--input-format", flags.format,
                 "text or jsonl; left out: as the content and the name of each file say");
  app.add_flag("--skip-bad", flags.skip_bad, "leave out documents that are no text");
}

data::TextOptions options_of(const TextFlags& flags) {
  data::TextOptions options;
  if (flags.skip_bad) options.bad = data::BadDocuments::kSkip;
  if (flags.documents == "blank-line")
    options.documents = data::Documents::kBlankLine;
  else if (flags.documents == "line")
    options.documents = data::Documents::kLine;
  else
    ASHLAR_REQUIRE(flags.documents == "file", kConfig,
                   "--documents is {}; expected file, blank-line or line", flags.documents);
  if (flags.format == "text")
    options.format = data::InputFormat::kText;
  else if (flags.format == "jsonl")
    options.format = data::InputFormat::kJsonLines;
  else
    ASHLAR_REQUIRE(flags.format.empty(), kConfig, "--input-format is {}; expected text or jsonl",
                   flags.format);
  return options;
}

}  // namespace ashlar::cli
