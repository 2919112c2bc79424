// Reports of the writers of a step when the channel between them breaks at a bad moment;
// save_channel_test.cpp and writers_fail_test.cpp have whole saves.
#include "ashlar/checkpoint/writers/coordination.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

TEST(Coordination, AFailureInFlightGoesToTheDirectoryIfTheChannelBreaks) {
  Log log = quiet_log();
  const auto files = memory_files();
  files->make_directories("root");
  const auto tree =
      std::make_shared<const control::Tree>(control::make_tree(std::vector<int>{0, 1}, 2));
  SaveChannel channel(tree, 1, "n1", log);  // its messages arrive nowhere
  const auto coordination =
      by_channel(channel, 1, 60, by_directory(*files, "root", {1, 2, 60, 0.001}, log));
  const Id attempt = random_id();
  const std::string path = join(join("root", tmp_name(3, to_text(attempt))), "part-00002.error");
  FailedPart part =
      failed_part(attempt, 3, Error(ErrorKind::kStorage, "step 3 is not saved: no room"));
  coordination->fail(part);
  EXPECT_FALSE(files->stat(path));
  channel.lost(0, "it is gone");
  coordination->await_heard(part);
  EXPECT_EQ(read_text(*files, path), "no room");

  FailedPart later = failed_part(random_id(), 4, Error(ErrorKind::kStorage, "no disk"));
  coordination->fail(later);
  coordination->await_heard(later);  // the directory has it: nothing is written twice
  EXPECT_EQ(read_text(*files,
                      join(join("root", tmp_name(4, to_text(later.attempt))), "part-00002.error")),
            "no disk");
}

}  // namespace
}  // namespace ashlar::checkpoint
