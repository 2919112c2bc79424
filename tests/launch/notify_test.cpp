#include "ashlar/launch/notify.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using ashlar::testing_support::TemporaryDirectory;

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The programs run in another process: returns once the file has this text, or after a minute.
void await_text(const std::filesystem::path& path, const std::string& text) {
  for (int i = 0; i < 6000 && text_of(path) != text; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(text_of(path), text);
}

TEST(Notifier, StartsTheProgramForEveryEventEvenAfterItsEnd) {
  const TemporaryDirectory root;
  std::vector<std::string> warnings;
  Log log([&](std::string_view line) { warnings.emplace_back(line); });
  {
    Notifier notifier(
        {"sh", "-c", R"(cat >> "$0"; echo "$1" >> "$0")", root / "told", "$(exit); it's"}, log);
    notifier.tell("{\"event\":\"start\"}\n");
    notifier.tell("{\"event\":\"stop\"}\n");
  }
  await_text(root / "told",
             "{\"event\":\"start\"}\n$(exit); it's\n{\"event\":\"stop\"}\n$(exit); it's\n");
  EXPECT_TRUE(warnings.empty());
}

TEST(Notifier, EndsAProgramThatTakesTooLong) {
  const TemporaryDirectory root;
  Log log([](std::string_view) {});
  Notifier notifier(
      {"sh", "-c", R"(read line; case $line in 1) sleep 1000;; esac; echo $line >> "$0")",
       root / "told"},
      log, 0.3);
  notifier.tell("1\n");
  notifier.tell("2\n");
  await_text(root / "told", "2\n");
}

// Once, with an event that follows.
TEST(Notifier, WarnsOfAProgramThatFails) {
  const auto warning_of = [](const std::vector<std::string>& words, double patience_s) {
    std::vector<std::string> warnings;
    Log log([&](std::string_view line) { warnings.emplace_back(line); });
    Notifier notifier(words, log, patience_s);
    for (int i = 0; i < 500 && warnings.empty(); ++i) {
      notifier.tell("{}\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return warnings.empty() ? "" : warnings[0];
  };
  EXPECT_THAT(warning_of({"no-such-program"}, 10),
              testing::HasSubstr("launch.notify: no-such-program cannot be started"));
  EXPECT_THAT(warning_of({"sh", "-c", "exit 22"}, 10),
              testing::HasSubstr("launch.notify: sh ended with exit code 22"));
  EXPECT_THAT(warning_of({"sleep", "1000"}, 0.05),
              testing::HasSubstr("launch.notify: sleep was ended by signal 9"));
}

TEST(Notifier, DropsWhatNobodyTakes) {
  const TemporaryDirectory root;
  int num_warnings = 0;
  Log log([&](std::string_view line) { num_warnings += line.find("not told") != line.npos; });
  Notifier notifier({"sleep", "1"}, log, 0.5);
  const std::string line = std::string(60'000, 'x') + "\n";
  int told = 0;
  while (num_warnings == 0 && told < 1000) notifier.tell(line), ++told;
  EXPECT_LT(told, 1000);
  notifier.tell(std::string(Notifier::kMostBytes + 1, 'x'));
  EXPECT_EQ(num_warnings, 2);
}

TEST(Notifier, WithoutAProgramNothingHappens) {
  Log log([](std::string_view line) { ADD_FAILURE() << line; });
  Notifier notifier({}, log);
  notifier.tell("{}\n");
}

}  // namespace
}  // namespace ashlar::launch
