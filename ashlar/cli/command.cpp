#include "ashlar/cli/command.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "ashlar/core/files.h"
#include "ashlar/core/text.h"

namespace ashlar::cli {
namespace {

// The subcommand in which parsing stopped.
CLI::App* deepest(CLI::App* app) {
  for (const auto parsed = app->get_subcommands(); !parsed.empty();) return deepest(parsed.back());
  return app;
}

std::vector<std::string> names_in(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() ? full_name(app->get_parent()) + " " + app->get_name() : app->get_name();
}

// The beginning of a message after the program's name: "data prepare: ".
std::string place_of(const CLI::App* app) {
  if (!app->get_parent()) return "";
  const std::string name = full_name(app);
  return name.substr(name.find(' ') + 1) + ": ";
}

// "--vocab is abc; expected a whole number" of CLI11's "Could not convert: --vocab = abc".
std::string conversion_message(const CLI::App& app, const std::string& said) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string begin = "Could not convert: " + option->get_name() + " = ";
    if (!said.starts_with(begin)) continue;
    const std::string value = said.substr(begin.size());
    const bool large = value.find_first_not_of("0123456789") == value.npos;
    return fmt::format("{} is {}; expected {} number", option->get_name(), value,
                       large                                ? "a smaller"
                       : option->get_type_name() == "FLOAT" ? "a"
                                                            : "a whole");
  }
  return said;
}

std::string parse_message(CLI::App& app, const CLI::ParseError& error) {
  CLI::App* where = deepest(&app);
  const std::vector<std::string> extras = where->remaining();
  if (!extras.empty())
    return fmt::format("{}unknown '{}'{}", place_of(where), extras[0],
                       suggestion(extras[0].substr(0, extras[0].find('=')), names_in(where)));
  return fmt::format("{}{}; see {} --help", place_of(where),
                     conversion_message(*where, error.what()), full_name(where));
}

// Names the flag of an empty path or name, usually an unset variable of a script.
void require_values(const CLI::App* app) {
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_type_name() == kFreeText) continue;
    for (const std::string& value : option->results())
      ASHLAR_REQUIRE(!value.empty(), kConfig, "{}{} is \"\"; expected a value", place_of(app),
                     option->get_name());
  }
}

int report(const std::string& message, int code) {
  print_error(message);
  return code;
}

int parse_and_run(int argc, const char* const* argv, Log& log) {
  CLI::App app("From bare nodes to a trained foundation model.", "ashlar");
  app.require_subcommand(1);
  app.set_version_flag("--version", ASHLAR_VERSION);
  CommandAction action;
  for (const auto add :
       {add_tokenizer, add_data, add_train, add_launch, add_status, add_plan, add_eval, add_score,
        add_generate, add_chat, add_serve, add_ckpt, add_bench, add_report, add_info})
    add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    const CLI::App* where = deepest(&app);
    print_lines(where->help(where->get_parent() ? full_name(where->get_parent()) : ""));
    return 0;
  } catch (const CLI::CallForVersion&) {
    print_result(std::string("ashlar ") + ASHLAR_VERSION);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (argc == 1) print_lines(app.help());
    return report(printable(parse_message(app, error)), int(ErrorKind::kConfig));
  }
  require_values(deepest(&app));
  return action(log);
}

}  // namespace

int run(int argc, const char* const* argv) {
  Log log;
  try {
    return parse_and_run(argc, argv, log);
  } catch (...) {
    const Report what = report_of(std::current_exception());
    return report(what.message, what.exit_code);
  }
}

void print_result(std::string_view line) {
  print_part(printable(line) + "\n");
}

void print_lines(std::string_view text) {
  print_part(printable(text, NewLines::kKeep) + "\n");
}

// JSON has such characters within strings alone, and escapes those below U+0020 itself.
void print_json(std::string_view json) {
  std::string text;
  for (size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const bool c1 = byte == 0xC2 && i + 1 < json.size() &&  // U+0080 to U+009F
                    static_cast<unsigned char>(json[i + 1]) < 0xA0;
    if (c1) ++i;
    if (c1 || byte == 127)
      text += fmt::format("\\u{:04x}", static_cast<unsigned char>(json[i]));
    else
      text += json[i];
  }
  print_part(text + "\n");
}

void print_part(std::string_view text) {
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  ASHLAR_REQUIRE(written == text.size() && std::fflush(stdout) == 0, kStorage,
                 "writing a result to stdout: {}", std::generic_category().message(errno));
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

void print_error(std::string_view message) {
  constexpr size_t kMaxBytes = 4000, kKept = 600;  // more than any message with usual names
  std::string text(message);
  if (text.size() > kMaxBytes)
    text = fmt::format("{} [... {} bytes ...] {}", text.substr(0, kKept), text.size() - 2 * kKept,
                       text.substr(text.size() - kKept));
  // Whole characters again, if a cut went through one.
  std::fprintf(stderr, "ashlar: %s\n", printable(text, NewLines::kKeep).c_str());
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (const std::string& word : split(text, ',')) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    ASHLAR_REQUIRE(error == std::errc() && end == word.data() + word.size() && id >= 0, kConfig,
                   "--ids: '{}' is no token id; expected whole numbers such as 3,7,1,9", word);
    ids.push_back(id);
  }
  return ids;
}

void add_force(CLI::App& app, Existing& existing) {
  existing = Existing::kRefuseUnlessForced;
  app.add_flag_callback(
      "--force", [&existing] { existing = Existing::kReplace; },
      "replace files that have the names of the outputs; inputs never");
}

void add_bind_to(CLI::App& app, std::string& word) {
  app.add_option("--bind-to", word,
                 "l3cache: threads to the cores of a last-level cache, the default; core: each "
                 "thread of kernels to a core; none: to nothing");
}

void check_out(const std::string& out) {
  const std::string name = out.substr(out.rfind('/') + 1);
  ASHLAR_REQUIRE(!name.empty() && name != "." && name != "..", kConfig,
                 "--out is '{}'; expected a path that ends in a name, such as {}", out,
                 join(out.empty() ? "." : out, "mine"));
}

}  // namespace ashlar::cli
