#include "ashlar/launch/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::launch {
namespace {

// Layouts that are simulated for one number of ranks; the formulas are seldom wrong by more places.
constexpr int kSimulated = 5;

// The memory that a rank may take; 0: unknown.
int64_t bytes_of_rank(const LayoutQuestion& question, int ranks_per_node) {
  const machine::Profile& profile = question.machine.profile;
  int64_t bytes = question.node_bytes / ranks_per_node;
  if (const machine::Quantity* device = profile.find("device.memory"))
    bytes = int64_t(device->value);
  else if (const machine::Quantity* node = profile.find("node.memory"))
    bytes = int64_t(node->value) / ranks_per_node;
  const int64_t limit = (question.recipe.train.memory_limit_mib << 20) / ranks_per_node;
  return limit > 0 && (bytes == 0 || limit < bytes) ? limit : bytes;
}

plan::SearchOptions search_options(const LayoutQuestion& question, int nodes, int ranks_per_node) {
  plan::SearchOptions options;
  options.num_ranks = nodes * ranks_per_node;
  options.ranks_per_node = ranks_per_node;
  options.top = 1;
  options.num_simulated = kSimulated;
  options.memory_bytes = bytes_of_rank(question, ranks_per_node);
  return options;
}

LaunchLayout layout_of(const LayoutQuestion& question, const plan::SearchedLayout& found, int nodes,
                       int ranks_per_node) {
  LaunchLayout layout{.nodes = nodes, .ranks_per_node = ranks_per_node};
  for (const std::string& key : split(found.keys, ' '))
    if (!key.empty()) layout.keys.push_back(key);
  const bool other_ranks = nodes * ranks_per_node != question.nodes * question.ranks_per_node;
  if (other_ranks && question.recipe.parallel.dp != 0)
    layout.keys.push_back(fmt::format("parallel.dp={}", found.parallel.dp));
  layout.mesh = mesh_text(found.parallel);
  layout.step_s = found.step_s();
  layout.rank_bytes = found.memory->total_bytes;
  return layout;
}

struct NodeRanks {
  int nodes, ranks_per_node;
  int all() const { return nodes * ranks_per_node; }
};

// The ways to place ranks on at most so many nodes, most ranks first.
std::vector<NodeRanks> placements_on(int nodes, int ranks_per_node) {
  std::vector<NodeRanks> ways;
  for (int n = 1; n <= nodes; ++n)
    for (int r = 1; r <= ranks_per_node; ++r) ways.push_back({n, r});
  std::ranges::stable_sort(ways, [](const NodeRanks& a, const NodeRanks& b) {
    return a.all() != b.all() ? a.all() > b.all() : a.nodes < b.nodes;
  });
  return ways;
}

void write_layouts(FileSystem& files, const std::string& path, const LaunchLayouts& layouts) {
  Ordered rows = Ordered::array();
  for (const LaunchLayout& layout : layouts.all)
    rows.push_back({{"nodes", layout.nodes},
                    {"ranks_per_node", layout.ranks_per_node},
                    {"keys", layout.keys},
                    {"mesh", layout.mesh},
                    {"step_s", layout.step_s},
                    {"rank_bytes", layout.rank_bytes}});
  write_text(
      files, path,
      one_line(
          {{"v", 1}, {"question", layouts.question}, {"whole", layouts.whole}, {"layouts", rows}}) +
          "\n");
}

}  // namespace

std::string LayoutQuestion::id() const {
  const std::string text =
      fmt::format("{}\n{}\n{} {} {} {}", to_toml(recipe), machine::to_toml(machine.profile),
                  int(compute), nodes, ranks_per_node, bytes_of_rank(*this, ranks_per_node));
  return fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(text))));
}

LaunchLayout own_layout(const LayoutQuestion& question, Log& log) {
  plan::SearchOptions options = search_options(question, question.nodes, question.ranks_per_node);
  const plan::SearchSpace space(question.recipe, options.num_ranks, options.goal, {}, {});
  for (const plan::SearchKey& key : space.keys())
    options.fixed.push_back(fmt::format("{}=", key.key->name));
  options.memory_bytes = INT64_MAX;  // it runs
  const auto found =
      plan::best_layouts(question.recipe, question.compute, question.machine, options, log);
  ASHLAR_REQUIRE(!found.empty(), kConfig, "{} ranks cannot share the recipe", options.num_ranks);
  return layout_of(question, found[0], question.nodes, question.ranks_per_node);
}

std::optional<LaunchLayout> layout_on(const LayoutQuestion& question, int nodes, Log& log) {
  for (const NodeRanks& ways : placements_on(nodes, question.ranks_per_node)) {
    const auto found =
        plan::best_layouts(question.recipe, question.compute, question.machine,
                           search_options(question, ways.nodes, ways.ranks_per_node), log);
    if (!found.empty()) return layout_of(question, found[0], ways.nodes, ways.ranks_per_node);
  }
  return std::nullopt;
}

const LaunchLayout* LaunchLayouts::on(int nodes) const {
  const auto found =
      std::ranges::find_if(all, [&](const LaunchLayout& layout) { return layout.nodes <= nodes; });
  return found == all.end() ? nullptr : &*found;
}

LaunchLayouts read_layouts(FileSystem& files, const std::string& path,
                           const std::string& question) {
  LaunchLayouts layouts{question};
  if (!files.stat(path)) return layouts;
  try {
    const Json json = parse_json(read_text(files, path), path, ErrorKind::kCorrupt);
    if (json.at("question") != question) return layouts;
    layouts.whole = json.at("whole");
    for (const Json& row : json.at("layouts"))
      layouts.all.push_back({row.at("nodes"), row.at("ranks_per_node"), row.at("keys"),
                             row.at("mesh"), row.at("step_s"), row.at("rank_bytes")});
  } catch (const std::exception&) {  // it is made again
    layouts = {question};
  }
  return layouts;
}

void find_layouts(const LayoutQuestion& question, FileSystem& files, const std::string& path,
                  Log& log) {
  LaunchLayouts layouts = read_layouts(files, path, question.id());
  if (layouts.whole) return;
  if (layouts.all.empty()) {
    layouts.all.push_back(own_layout(question, log));
    write_layouts(files, path, layouts);
  }
  const int half = (question.nodes + 1) / 2;
  std::vector<int> order{question.nodes - 1, half};
  for (int nodes = question.nodes - 2; nodes > half; --nodes) order.push_back(nodes);
  std::vector<std::pair<int, int>> answers;  // nodes that were asked for, and that are used
  for (const int nodes : order) {
    const bool known = std::ranges::any_of(answers, [&](const auto& answer) {
      return answer.second <= nodes && nodes <= answer.first;
    });
    if (known || nodes < 1 || nodes >= question.nodes) continue;
    const std::optional<LaunchLayout> layout = layout_on(question, nodes, log);
    if (!layout) continue;
    answers.emplace_back(nodes, layout->nodes);
    if (std::ranges::find(layouts.all, *layout) != layouts.all.end()) continue;
    layouts.all.push_back(*layout);
    std::ranges::stable_sort(layouts.all, std::greater(), &LaunchLayout::nodes);
    write_layouts(files, path, layouts);
  }
  layouts.whole = true;
  write_layouts(files, path, layouts);
}

}  // namespace ashlar::launch
