// Pictures of schedules: those of the documentation, and the drawing of one.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// Behind every "    $ ashlar plan schedule ..." of the page stand the lines that it prints.
TEST(Schedule, PicturesOfTheDocumentationAreThePrograms) {
  const Scratch scratch;
  std::istringstream page(read_file(std::filesystem::path(kData) / "../../docs/parallel/pp.md"));
  int num_pictures = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("    $ ashlar plan schedule ")) continue;
    const std::vector<std::string> words = words_of(line);
    std::istringstream printed(run_ok(scratch, {words.begin() + 2, words.end()}));
    for (std::string expected; std::getline(printed, expected);) {
      ASSERT_TRUE(std::getline(page, line)) << expected;
      EXPECT_EQ(line, "    " + expected);
    }
    ++num_pictures;
  }
  EXPECT_EQ(num_pictures, 4);
}

TEST(Schedule, DrawsACellForEveryAction) {
  const Scratch scratch;
  run_ok(scratch, {"plan", "schedule", "--stages", "3", "--micro-batches", "5", "--schedule", "zb",
                   "--svg", "picture.svg"});
  const std::string svg = read_file(scratch / "picture.svg");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_EQ(count_of(svg, "<rect "), 3 * 3 * 5);
  for (const char* label : {">F4<", ">B4<", ">W4<"}) EXPECT_EQ(count_of(svg, label), 3) << label;
}

TEST(Schedule, RefusesWhatItCannotDraw) {
  const Scratch scratch;
  const Result unknown = run(scratch, {"plan", "schedule", "--schedule", "round"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err, "ashlar: --schedule is round; expected gpipe, 1f1b, interleaved, zb\n");
  const Result many = run(scratch, {"plan", "schedule", "--schedule", "interleaved",
                                    "--virtual-stages", "27", "--micro-batches", "4"});
  EXPECT_EQ(many.code, 2);
  EXPECT_EQ(many.err,
            "ashlar: 27 virtual stages on each stage, but a picture has letters for 26; "
            "choose fewer\n");
}

}  // namespace
}  // namespace ashlar::integration
