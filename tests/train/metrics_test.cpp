// A start's view of the rows of the starts before it.
#include "ashlar/train/records/metrics.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::train {
namespace {

constexpr const char* kPath = "run/metrics.jsonl";

std::string row(int64_t step) {
  return fmt::format("{{\"step\":{},\"samples\":{},\"loss\":1.0}}\n", step, 4 * step);
}

std::string event(const char* name, int64_t step) {
  return fmt::format("{{\"event\":\"{}\",\"step\":{}}}\n", name, step);
}

std::unique_ptr<FileSystem> files_with(const std::string& text) {
  auto files = memory_files();
  files->make_directories("run");
  write_text(*files, kPath, text);
  return files;
}

// The file after a start that continues from `after` and does one step more.
std::string continued(FileSystem& files, int64_t after) {
  Log log([](std::string_view) {});
  {
    Metrics metrics(files, "run", log, {}, 1000, after);
    metrics.event("resume", {{"step", after}});
  }
  return read_text(files, kPath);
}

std::string resumed(int64_t after) {
  return event("resume", after);
}

TEST(Metrics, RowsAfterTheResumedStepAreCut) {
  const std::string kept = row(1) + event("evaluation", 1) + row(2);
  const auto files = files_with(kept + row(3) + event("evaluation", 3) + row(4));
  EXPECT_EQ(continued(*files, 2), kept + resumed(2));
  EXPECT_EQ(continued(*files, 2), kept + resumed(2) + resumed(2));
  EXPECT_EQ(continued(*files, 0), resumed(0));
}

TEST(Metrics, NothingIsCutAfterACleanEnd) {
  const std::string all = row(1) + row(2) + event("checkpoint", 2);
  EXPECT_EQ(continued(*files_with(all), 2), all + resumed(2));
  EXPECT_EQ(continued(*files_with(""), 2), resumed(2));
}

// A save in the background tells of its end when later steps are done already.
TEST(Metrics, LateEventsOfEarlierStepsStay) {
  const std::string first = "{\"event\":\"first_step\",\"seconds\":0.5}\n";
  const auto files = files_with(row(1) + first + row(2) + row(3) + event("checkpoint", 2) + row(4) +
                                event("skip", 4));
  EXPECT_EQ(continued(*files, 2), row(1) + first + row(2) + event("checkpoint", 2) + resumed(2));
}

TEST(Metrics, ALineThatAKillCutShortGoes) {
  for (const std::string& torn : {row(3).substr(0, 12), row(2).substr(0, 1), std::string("{}")}) {
    const auto files = files_with(row(1) + row(2) + torn);
    EXPECT_EQ(continued(*files, 2), row(1) + row(2) + resumed(2)) << torn;
  }
  EXPECT_EQ(continued(*files_with(row(1).substr(0, 12)), 0), resumed(0));
}

// A file that is none of a run's is somebody's: nothing of it is cut, and nothing appended.
TEST(Metrics, AFileOfSomethingElseIsRefused) {
  for (const std::string& text :
       {std::string("precious\n"), std::string("precious"), std::string("\n"), std::string("{}\n"),
        std::string("[{\"step\":1}]\n"), std::string("{\"loss\":1.0}\n{\"loss\":0.5}\n"),
        std::string("{\"step\":1,\"lo\n"), std::string(100, '\0')}) {
    const auto files = files_with(text);
    for (const int64_t after : {0, 2})
      EXPECT_EQ(
          ashlar::testing_support::message_of(ErrorKind::kStorage,
                                              [&] { continued(*files, after); }),
          fmt::format("run/metrics.jsonl holds {} and no row of a run, so that it is not cut "
                      "or appended to; expected the metrics of this run or no such file: move "
                      "it away, or choose another train.run_dir",
                      format_bytes(int64_t(text.size()))))
          << text;
    EXPECT_EQ(read_text(*files, kPath), text);
  }
}

TEST(Metrics, ABoardThatIsALinkIsRefused) {
  const ashlar::testing_support::TemporaryDirectory root;
  const auto files = posix_files();
  std::filesystem::create_directories(root / "elsewhere");
  Log log([](std::string_view) {});
  for (const std::string target : {"elsewhere", "nowhere"}) {
    std::filesystem::create_symlink(root / target, root / "tensorboard");
    const std::string message = ashlar::testing_support::message_of(
        ErrorKind::kStorage, [&] { Metrics(*files, root / "", log, {}, 1000, 0); });
    EXPECT_NE(message.find("tensorboard: it is a link; expected a directory"), message.npos)
        << message;
    std::filesystem::remove(root / "tensorboard");
  }
  EXPECT_TRUE(std::filesystem::is_empty(root / "elsewhere"));
  EXPECT_FALSE(std::filesystem::exists(root / "nowhere"));
}

// The last record of its first flush is the start; its step stands before SessionLog and checksum.
TEST(Metrics, TheBoardStartsAtTheNextStep) {
  const auto files = files_with(row(1) + row(2));
  continued(*files, 2);
  const auto names = files->list("run/tensorboard");
  ASSERT_EQ(names.size(), 1u);
  const std::string text = read_text(*files, "run/tensorboard/" + names[0]);
  EXPECT_EQ(text[text.size() - 9], 3);
}

TEST(Metrics, AFailedWriteIsMadeAgainInItsPlace) {
  const auto disk = memory_files();
  disk->make_directories("run");
  bool broken = false;
  const auto files =
      faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
        return broken && operation == "write" && path == kPath ? Fault::kShortWrite : Fault::kNone;
      });
  std::string said;
  Log log([&](std::string_view line) { said += line; });
  {
    Metrics metrics(*files, "run", log, {}, 1000, 0);
    metrics.event("a", {{"n", 1}});
    broken = true;
    EXPECT_THROW(metrics.drain(), Error);
    broken = false;
    metrics.event("b", {{"n", 2}});
  }
  EXPECT_EQ(read_text(*disk, kPath), "{\"event\":\"a\",\"n\":1}\n{\"event\":\"b\",\"n\":2}\n");
  EXPECT_EQ(said, "");
  {
    Metrics metrics(*files, "run", log, {}, 1000, 0);
    metrics.event("c", {{"n", 3}});
    broken = true;
  }
  EXPECT_NE(said.find("the last rows are lost: "), std::string::npos) << said;
}

// People change the files of a run that goes on: nothing is lost without a word.
struct Meddled {
  std::string name;
  void (*meddle)(FileSystem& files, const std::string& path);
  const char* rows;  // that are there in the end: of 1, 2 before it and 3, 4 behind
  const char* said;
};

TEST(Metrics, RowsOutliveWhatHappensToTheirFile) {
  const std::vector<Meddled> cases{
      {"untouched", [](FileSystem&, const std::string&) {}, "1234", ""},
      {"removed", [](FileSystem& files, const std::string& path) { files.remove(path); }, "1234",
       "was removed or moved while the run writes it: it is there again, with all rows"},
      {"moved",
       [](FileSystem& files, const std::string& path) { files.rename_new(path, path + ".old"); },
       "1234", "was removed or moved while the run writes it: it is there again, with all rows"},
      {"with its directory",
       [](FileSystem& files, const std::string& path) { files.remove_all(parent_of(path)); },
       "1234", "was removed or moved while the run writes it: it is there again, with all rows"},
      {"moved with its directory",
       [](FileSystem& files, const std::string& path) {
         files.rename_new(parent_of(path), "elsewhere");
       },
       "1234", "was removed or moved while the run writes it: it is there again, with all rows"},
      {"replaced by an edited one",
       [](FileSystem& files, const std::string& path) { write_text(files, path, "x\n"); }, "x34",
       "was replaced by another file while the run writes it: rows go on in that one"},
      {"moved, and a new one made",
       [](FileSystem& files, const std::string& path) {
         files.rename_new(path, path + ".old");
         files.create(path);
       },
       "34", "was replaced by another file while the run writes it: rows go on in that one"},
      {"cut", [](FileSystem& files, const std::string& path) { files.append(path)->truncate(0); },
       "34", "rows go on at its end, and what was cut is lost"},
  };
  for (const Meddled& c : cases) {
    SCOPED_TRACE(c.name);
    const auto files = memory_files();
    files->make_directories("run");
    std::string said;
    Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
    {
      Metrics metrics(*files, "run", log, {}, 1000, 0);
      const auto event = [&](int n) {
        metrics.event("e", {{"n", n}});
        metrics.drain();
      };
      event(1);
      event(2);
      c.meddle(*files, kPath);
      event(3);
      event(4);
    }
    std::string found;
    for (const char letter : read_text(*files, kPath))
      if (std::string_view("1234x").find(letter) != std::string_view::npos) found += letter;
    EXPECT_EQ(found, c.rows) << read_text(*files, kPath);
    if (*c.said == '\0')
      EXPECT_EQ(said, "");
    else
      EXPECT_NE(said.find(fmt::format("warning: {} ", kPath)), said.npos) << said;
    EXPECT_NE(said.find(c.said), said.npos) << said;
  }
}

// The last rows are there too if nothing is written after the file went.
TEST(Metrics, ARunThatEndsLeavesItsRows) {
  const auto files = memory_files();
  files->make_directories("run");
  Log log([](std::string_view) {});
  {
    Metrics metrics(*files, "run", log, {}, 1000, 0);
    metrics.event("e", {{"n", 1}});
    metrics.drain();
    files->remove(kPath);
  }
  EXPECT_EQ(read_text(*files, kPath), "{\"event\":\"e\",\"n\":1}\n");
}

// The board of a start is a file like the rows'.
TEST(Metrics, ABoardThatIsRemovedIsMadeAgain) {
  const auto files = memory_files();
  files->make_directories("run");
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  const auto bytes_of_board = [&] {
    const auto names = files->list("run/tensorboard");
    return names.size() == 1 ? read_text(*files, "run/tensorboard/" + names[0]) : "";
  };
  std::string before;
  {
    Metrics metrics(*files, "run", log, {}, 1000, 0);
    metrics.evaluation(1, 2.0, 10, 0.1);
    metrics.drain();
    before = bytes_of_board();
    files->remove_all("run/tensorboard");
    metrics.evaluation(2, 1.0, 10, 0.1);
  }
  EXPECT_GT(before.size(), 0u);
  EXPECT_TRUE(bytes_of_board().starts_with(before));
  EXPECT_GT(bytes_of_board().size(), before.size());
  EXPECT_NE(said.find("it is there again, with all rows"), said.npos) << said;
}

}  // namespace
}  // namespace ashlar::train
