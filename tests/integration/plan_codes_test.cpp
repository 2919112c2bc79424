// Exit codes of `ashlar plan`: 3 where no layout fits in memory (docs/errors.md), and only of the
// commands that say so.
#include <gtest/gtest.h>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

const std::string kTiny = kData + "/recipes/tiny.toml";
constexpr int kNothingFits = 3;

// The machine of the recorded steps, with that much memory in its node.
std::string write_machine(const Scratch& scratch, const char* bytes) {
  std::string text = read_file(kData + "/recorded_steps/machine.toml");
  text.replace(text.find("[node]\n"), 7,
               std::string("[node]\nmemory = { value = ") + bytes +
                   ", unit = \"B\", source = \"assumed\", from = \"a test\" }\n");
  write_file(scratch / "machine.toml", text);
  return "machine.toml";
}

Result plan(const Scratch& scratch, const char* command, std::vector<std::string> more) {
  more.insert(more.begin(), {"plan", command, kTiny, "--ranks", "2"});
  return run(scratch, more);
}

TEST(PlanCodes, ASearchEndsWith3WhereNoLayoutFits) {
  const Scratch scratch;
  const std::vector<std::string> few = {
      "--machine", write_machine(scratch, "1e9"),      "--simulate", "1", "--top", "1",
      "--fix",     "parallel.pp=1 train.micro_batch=1"};
  EXPECT_EQ(plan(scratch, "search", few).code, 0);
  std::vector<std::string> narrow = few;
  narrow.insert(narrow.end(), {"--memory", "0.0001"});
  const Result missed = plan(scratch, "search", narrow);
  EXPECT_EQ(missed.code, kNothingFits) << missed.err;
  EXPECT_NE(missed.out.find("no layout fits in 104.86 KiB (--memory)"), std::string::npos)
      << missed.out;
  narrow.insert(narrow.end(), {"--json", "-"});
  const Result json = plan(scratch, "search", narrow);
  EXPECT_EQ(json.code, kNothingFits);
  EXPECT_NE(json.out.find("\"nearest_miss\":{"), std::string::npos) << json.out;
}

TEST(PlanCodes, AnEstimateEndsWith3WhereNoLayoutFits) {
  const Scratch scratch;
  const std::vector<std::string> wide = {"--machine", write_machine(scratch, "1e9")};
  EXPECT_EQ(plan(scratch, "estimate", wide).code, 0);
  write_machine(scratch, "1e5");
  EXPECT_EQ(plan(scratch, "estimate", wide).code, kNothingFits);
}

// A simulation times a step whether or not it fits; a check judges what the trainer accepts.
TEST(PlanCodes, OtherCommandsDoNotJudgeMemory) {
  const Scratch scratch;
  const std::vector<std::string> narrow = {"--machine", write_machine(scratch, "1e5")};
  EXPECT_EQ(plan(scratch, "simulate", narrow).code, 0);
  EXPECT_EQ(plan(scratch, "check", narrow).code, 0);
  // With the sizes that the machine's links need for buckets.
  std::vector<std::string> buckets = narrow;
  buckets.push_back("parallel.bucket_bytes=auto");
  for (const char* command : {"simulate", "check"}) {
    const Result result = plan(scratch, command, buckets);
    EXPECT_EQ(result.code, 0) << command << ": " << result.err;
  }
  const Result alone = plan(scratch, "dry-run", {"parallel.bucket_bytes=auto"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("train.machine names no profile"), std::string::npos) << alone.err;
}

}  // namespace
}  // namespace ashlar::integration
