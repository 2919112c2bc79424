#include "ashlar/core/skip_list.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

TEST(SkipList, GetsEveryStepOnce) {
  const auto files = memory_files();
  files->make_directories("run");
  EXPECT_EQ(read_skip_list(*files, "run"), "");
  const std::vector<HarmfulStep> first{{57, {112, 113}, "loss is nan"},
                                       {58, {114, 115}, "a \"b\""}};
  add_to_skip_list(*files, "run", first);
  EXPECT_EQ(read_text(*files, "run/skips.jsonl"),
            "{\"step\":57,\"samples\":[112,113],\"reason\":\"loss is nan\"}\n"
            "{\"step\":58,\"samples\":[114,115],\"reason\":\"a \\\"b\\\"\"}\n");
  add_to_skip_list(
      *files, "run",
      std::vector<HarmfulStep>{{58, {114, 115}, "again"}, {60, {115, 116}, "of other batches"}});
  const auto steps = parse_skip_list(read_skip_list(*files, "run"), "run/skips.jsonl");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].reason, "a \"b\"");
  EXPECT_EQ(steps[2].step, 60);
  EXPECT_EQ(steps[2].samples, (std::vector<int64_t>{115, 116}));
}

TEST(SkipList, NamesTheLineThatIsWrong) {
  const std::string good = "{\"step\":1,\"samples\":[0],\"reason\":\"\"}\n";
  EXPECT_EQ(parse_skip_list(good + "\n" + good, "s").size(), 2u);
  for (const char* bad :
       {"{", "[]", "{\"step\":1,\"samples\":[0]}", "{\"step\":1,\"samples\":[-1],\"reason\":\"\"}",
        "{\"step\":1,\"samples\":0,\"reason\":\"\"}",
        "{\"step\":1,\"samples\":[0],\"reason\":\"\",\"loss\":1}"}) {
    try {
      parse_skip_list(good + bad + "\n", "skips.jsonl");
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_TRUE(std::string(error.what()).starts_with("skips.jsonl:2")) << error.what();
    }
  }
}

}  // namespace
}  // namespace ashlar
