// Helpers of subcommands: how one is declared, and where its help, results and errors go.
//
// Each cli/<name>.cpp declares its flags on a CLI::App (the one table that --help and the checks
// come from) and returns an action.  Results go to stdout, progress and messages to stderr, and the
// exit code is the kind of the Error.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/log.h"
#include "ashlar/core/output.h"

namespace CLI {
class App;
}

namespace ashlar::cli {

// The type of an option whose value may be empty, which is an error for all others.
inline constexpr const char* kFreeText = "[TEXT]";

using CommandAction = std::function<int(Log&)>;

// Each adds its subcommand to `app`; parsing one sets `action`.
void add_tokenizer(CLI::App& app, CommandAction& action);
void add_data(CLI::App& app, CommandAction& action);
void add_train(CLI::App& app, CommandAction& action);
void add_launch(CLI::App& app, CommandAction& action);
void add_status(CLI::App& app, CommandAction& action);
void add_plan(CLI::App& app, CommandAction& action);
void add_eval(CLI::App& app, CommandAction& action);
void add_score(CLI::App& app, CommandAction& action);
void add_generate(CLI::App& app, CommandAction& action);
void add_chat(CLI::App& app, CommandAction& action);
void add_serve(CLI::App& app, CommandAction& action);
void add_ckpt(CLI::App& app, CommandAction& action);
void add_bench(CLI::App& app, CommandAction& action);
void add_report(CLI::App& app, CommandAction& action);
void add_info(CLI::App& app, CommandAction& action);

// Parses and runs; returns the exit code.  Never throws.
int run(int argc, const char* const* argv);

// These write to stdout at once; kStorage where that fails (a full disk, a closed descriptor).
// Results contain names that others chose, and none of their bytes reaches a terminal as a command.
void print_result(std::string_view line);  // one line: newlines in it are shown as '?'
void print_lines(std::string_view text);   // newlines stay, and one ends the text
void print_json(std::string_view json);    // control characters as \u escapes: the same values
void print_part(std::string_view text);    // unchanged, for text that a user asked for
// Writes to stderr, after the program's name.  A message with a huge name loses its middle.  Only
// the program's own newlines remain: Error and report_of leave no others.
void print_error(std::string_view message);
std::string last_part(const std::string& path);           // "c" of "a/b/c"
std::vector<int32_t> parse_ids(const std::string& text);  // "3,7,1,9"; kConfig otherwise
// kConfig unless --out ends in a name: "", "DIR/" and "." would make hidden files.
void check_out(const std::string& out);
// --force, for commands that write files.
void add_force(CLI::App& app, Existing& existing);
// --bind-to, for commands that start ranks (train/placing.h).
void add_bind_to(CLI::App& app, std::string& word);

}  // namespace ashlar::cli
