// ashlar bench compare MEASURED EXPECTED [--json] [--strict]
#include <CLI/CLI.hpp>

#include "ashlar/cli/bench_machine.h"
#include "ashlar/core/files.h"
#include "ashlar/machine/compare.h"

namespace ashlar::cli {
namespace {

// A file, or a profile that the program carries.
machine::Profile profile_named(FileSystem& files, const std::string& name) {
  if (!files.stat(name, LinkPolicy::kFollow))
    if (const char* text = machine::shipped_text(name)) return machine::parse_profile(text, name);
  return machine::parse_profile(read_text(files, name), name);
}

std::string table_of(const std::vector<machine::Judgement>& judgements) {
  std::string text = fmt::format("{:<62} {:>10} {:<8} {:>6} {:<12} {}\n", "number", "value", "unit",
                                 "ratio", "verdict", "expected");
  for (const machine::Judgement& j : judgements)
    text += fmt::format("{:<62} {:>10.4g} {:<8} {:>6} {:<12} {}\n", j.name, j.value, j.unit,
                        j.ratio ? fmt::format("{:.3f}", *j.ratio) : "-",
                        machine::to_string(j.verdict), j.expected);
  return text;
}

}  // namespace

void add_compare(CLI::App& group, CommandAction& action) {
  struct Flags {
    std::string measured, expected;
    bool json = false, strict = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = group.add_subcommand(
      "compare", "the numbers of one machine profile judged by those of another");
  sub->add_option("MEASURED", flags->measured, "the profile to judge")->required();
  sub->add_option("EXPECTED", flags->expected, "an earlier one, a sister's, or h100, h200, ...")
      ->required();
  sub->add_flag("--json", flags->json, "a JSON line for each number");
  sub->add_flag("--strict", flags->strict, "exit code 3 if a verdict is low");
  sub->callback([flags, &action] {
    action = [flags](Log&) {
      const auto files = posix_files();
      const machine::Profile measured = profile_named(*files, flags->measured),
                             expected = profile_named(*files, flags->expected);
      const std::vector<machine::Judgement> judgements = machine::compare(measured, expected);
      if (flags->json) {
        for (const machine::Judgement& j : judgements) print_json(bench::judgement_json(j));
        return machine::exit_code(machine::worst_of(judgements), flags->strict);
      }
      std::string text = judgements.empty() ? "" : table_of(judgements);
      text += bench::judgements_text(judgements);
      const auto list = [&](const std::string& where, const std::vector<std::string>& names) {
        for (const std::string& name : names) text += fmt::format("only in {}: {}\n", where, name);
      };
      list(flags->measured, machine::only_in(measured, expected));
      list(flags->expected, machine::only_in(expected, measured));
      text += fmt::format("verdict: {}", judgements.empty()
                                             ? "unknown: the profiles have no number in common"
                                             : machine::to_string(machine::worst_of(judgements)));
      print_lines(text);
      return machine::exit_code(machine::worst_of(judgements), flags->strict);
    };
  });
}

}  // namespace ashlar::cli
