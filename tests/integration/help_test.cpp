// --help everywhere, and every flag that README and docs show exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

const std::vector<std::vector<std::string>> kCommands = {
    {},
    {"tokenizer"},
    {"tokenizer", "train"},
    {"tokenizer", "encode"},
    {"tokenizer", "decode"},
    {"data"},
    {"data", "prepare"},
    {"data", "info"},
    {"data", "verify"},
    {"train"},
    {"launch"},
    {"status"},
    {"plan"},
    {"plan", "dry-run"},
    {"plan", "schedule"},
    {"plan", "check"},
    {"plan", "widths"},
    {"plan", "estimate"},
    {"plan", "goodput"},
    {"plan", "search"},
    {"plan", "simulate"},
    {"plan", "calibrate"},
    {"plan", "compare"},
    {"eval"},
    {"score"},
    {"generate"},
    {"chat"},
    {"serve"},
    {"ckpt"},
    {"ckpt", "list"},
    {"ckpt", "show"},
    {"ckpt", "verify"},
    {"ckpt", "diff"},
    {"ckpt", "average"},
    {"ckpt", "pin"},
    {"ckpt", "unpin"},
    {"ckpt", "prune"},
    {"ckpt", "import"},
    {"ckpt", "export"},
    {"bench"},
    {"bench", "products"},
    {"bench", "gemm"},
    {"bench", "linear-attention"},
    {"bench", "ranks"},
    {"bench", "memory"},
    {"bench", "checkpoint"},
    {"bench", "step"},
    {"bench", "collectives"},
    {"bench", "p2p"},
    {"bench", "kernels"},
    {"bench", "stream"},
    {"bench", "layers"},
    {"bench", "launch"},
    {"bench", "storage"},
    {"bench", "smoke"},
    {"bench", "all"},
    {"bench", "compare"},
    {"bench", "report"},
    {"report"},
    {"info"},
};

TEST(Help, EverySubcommandHasIt) {
  const Scratch scratch;
  for (std::vector<std::string> command : kCommands) {
    command.push_back("--help");
    const std::string help = run_ok(scratch, command);
    EXPECT_NE(help.find("Usage: ashlar"), std::string::npos) << help;
  }
  EXPECT_TRUE(run_ok(scratch, {"--version"}).starts_with("ashlar "));
  EXPECT_NE(run_ok(scratch, {"info"}).find("kernel paths"), std::string::npos);
}

// "ashlar ckpt export ... --layout legacy" -> help of `ckpt export` and {--layout}.
void check_line(const Scratch& scratch, const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> command, flags;
  bool in_command = true;
  for (std::string word; words >> word;) {
    std::vector<std::string> longer = command;
    longer.push_back(word);
    if (in_command && std::find(kCommands.begin(), kCommands.end(), longer) != kCommands.end()) {
      command = longer;
      continue;
    }
    in_command = false;
    if (word.starts_with("--")) flags.push_back(word.substr(0, word.find_first_of("=`),.;]")));
  }
  EXPECT_FALSE(command.empty()) << "no such subcommand: " << line;
  command.push_back("--help");
  const std::string help = run_ok(scratch, command);
  for (const std::string& flag : flags)
    EXPECT_TRUE(std::regex_search(help, std::regex(flag + "\\b")))
        << flag << " in: ashlar " << line;
}

TEST(Help, KnowsEveryFlagInReadmeAndDocs) {
  const Scratch scratch;
  const std::filesystem::path root = std::filesystem::path(kData).parent_path().parent_path();
  std::vector<std::filesystem::path> pages{root / "README.md"};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  // An indented command, with the lines that a backslash joins to it.
  const std::regex command(R"((?:^|\n)    (?:\w+=\S+ )*ashlar ((?:[^\n\\]|\\\n)*))");
  const std::filesystem::path commands = root / "docs/commands.md";
  int in_commands = 0;
  for (const auto& page : pages) {
    SCOPED_TRACE(page);
    const std::string text = read_file(page);
    for (std::sregex_iterator at(text.begin(), text.end(), command), end; at != end; ++at) {
      check_line(scratch, std::regex_replace((*at)[1].str(), std::regex(R"(\\\n)"), " "));
      if (page == commands) ++in_commands;
    }
  }
  EXPECT_GE(in_commands, 12) << commands << " lost its commands, or lays them out in another way";
}

// A list with commas, then overrides; a flag that is given twice.
TEST(Help, ListsOfFlagsEndBeforeOverrides) {
  const Scratch scratch;
  const std::string out =
      run_ok(scratch, {"bench", "memory", kData + "/recipes/tiny.toml", "--ranks", "2", "--layout",
                       "parallel.cp=2", "--layout", "parallel.tsp=2", "--lengths", "32,64",
                       "train.precision=fp32", "train.threads=1", "--svg", "memory.svg"});
  EXPECT_EQ(count_of(out, "parallel.cp=2 "), 2) << out;
  EXPECT_EQ(count_of(out, "parallel.tsp=2 "), 2) << out;
  EXPECT_EQ(count_of(read_file(scratch / "memory.svg"), "<polyline"), 2);
}

}  // namespace
}  // namespace ashlar::integration
