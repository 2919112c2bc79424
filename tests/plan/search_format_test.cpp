// docs/formats/search.md names every member of a search's JSON, and nothing else.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/plan/search.h"
#include "tests/plan/small_machine.h"

namespace ashlar::plan {
namespace {

using Names = std::set<std::string>;

// The names in the first column of the tables of a section.
Names documented(const std::string& section) {
  const auto files = posix_files();
  const std::string page = read_text(*files, ASHLAR_FIXTURES "/../../docs/formats/search.md");
  const size_t begin = page.find("\n## " + section + "\n");
  EXPECT_NE(begin, std::string::npos) << section;
  Names names;
  for (const std::string& line :
       split(page.substr(begin + 1, page.find("\n## ", begin + 1) - begin), '\n')) {
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> ticks = split(split(line, '|')[1], '`');
    for (size_t i = 1; i < ticks.size(); i += 2) names.insert(ticks[i]);
  }
  return names;
}

Names members_of(const Json& object) {
  Names names;
  for (const auto& item : object.items()) names.insert(item.key());
  return names;
}

Json search_json(const MachineFile& machine, int64_t memory_bytes) {
  SearchOptions options;
  options.num_ranks = 2;
  options.fixed = {"parallel.pp=1", "parallel.tsp=1", "parallel.ep=1", "train.recompute=false",
                   "parallel.muon=auto"};
  options.num_simulated = 3;
  options.memory_bytes = memory_bytes;
  const Recipe recipe = tiny_recipe(options.fixed);
  Log log([](std::string_view) {});
  const SearchResult result = search(recipe, DType::kF32, machine, options, log);
  return parse_json(to_json(result, recipe, machine, options), "json", ErrorKind::kCorrupt);
}

TEST(SearchFormat, ThePageNamesEveryMember) {
  MachineFile machine = small_machine();
  machine.profile.set("node.memory", {400e6, "B", machine::Origin::kAssumed, "a guess", "", 0});
  const Json found = search_json(machine, 0), missed = search_json(machine, 1 << 20);
  ASSERT_FALSE(found["best"].empty());
  EXPECT_TRUE(missed["best"].empty());
  Names answer = members_of(found);
  answer.merge(members_of(missed));
  EXPECT_EQ(answer, documented("The answer"));
  EXPECT_EQ(members_of(found["counts"]), documented("Counts"));
  EXPECT_EQ(members_of(found["best"][0]), documented("A layout"));
  EXPECT_EQ(members_of(found["neighbours"][0]), documented("A neighbour"));
  EXPECT_EQ(members_of(found["classes"][0]), documented("A class of ranks"));
  ASSERT_FALSE(found["sensitivity"].empty());
  EXPECT_EQ(members_of(found["sensitivity"][0]), documented("A number of the profile"));
  EXPECT_EQ(found["format"], "ashlar-search-1");
}

}  // namespace
}  // namespace ashlar::plan
