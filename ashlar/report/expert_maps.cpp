#include "ashlar/report/expert_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

namespace ashlar::report {
namespace {

constexpr size_t kMostLoads = 60000;  // in all maps of a page

// The choices of each expert over their mean in the block, by block and step.
using LoadsByBlock = std::map<int64_t, std::vector<std::pair<double, std::vector<double>>>>;

LoadsByBlock read_loads(const RunRows& run) {
  LoadsByBlock blocks;
  for (const Json& event : run.events) {
    if (event["event"] != "expert_loads" || !event.contains("blocks") ||
        !event["blocks"].is_object() || !event.contains("step") || !event["step"].is_number())
      continue;
    for (const auto& [block, counts] : event["blocks"].items()) {
      std::vector<double> shares;
      double sum = 0;
      for (const Json& count : counts) {
        shares.push_back(count.is_number() ? count.get<double>() : 0);
        sum += shares.back();
      }
      for (double& share : shares) share *= sum > 0 ? double(shares.size()) / sum : 0;
      if (!shares.empty())
        blocks[std::atoll(block.c_str())].emplace_back(event["step"].get<double>(),
                                                       std::move(shares));
    }
  }
  return blocks;
}

// Blocks x experts, over the second half of the run.
HeatMap overview_of(const LoadsByBlock& blocks) {
  HeatMap map{"Load of every expert in the second half of the run",
              "expert",
              "block",
              "of the mean",
              {},
              {},
              {},
              "1 means as many choices as the mean expert of the block."};
  size_t experts = 0;
  for (const auto& [block, rows] : blocks) experts = std::max(experts, rows[0].second.size());
  for (size_t e = 0; e < experts; ++e) map.columns.push_back(std::to_string(e));
  for (const auto& [block, rows] : blocks) {
    map.rows.push_back(fmt::format("block {}", block));
    std::vector<double> sums(experts, std::nan(""));
    const size_t begin = rows.size() / 2;
    for (size_t i = begin; i < rows.size(); ++i)
      for (size_t e = 0; e < std::min(experts, rows[i].second.size()); ++e)
        sums[e] = (i == begin ? 0 : sums[e]) + rows[i].second[e] / double(rows.size() - begin);
    map.values.insert(map.values.end(), sums.begin(), sums.end());
  }
  return map;
}

}  // namespace

std::vector<HeatMap> expert_maps(const RunRows& run) {
  const LoadsByBlock blocks = read_loads(run);
  std::vector<HeatMap> maps;
  if (blocks.size() > 1) maps.push_back(overview_of(blocks));
  for (const auto& [block, rows] : blocks) {
    HeatMap map{fmt::format("Load of every expert, block {}", block),
                "step",
                "expert",
                "of the mean",
                {},
                {},
                {},
                "1 means as many choices as the mean expert of the block."};
    const size_t experts = rows[0].second.size();
    const size_t columns = std::clamp<size_t>(kMostLoads / (blocks.size() * experts), 8, 120);
    const size_t step = (rows.size() + columns - 1) / columns;
    for (size_t e = 0; e < experts; ++e) map.rows.push_back(std::to_string(e));
    std::vector<size_t> kept;
    for (size_t i = 0; i < rows.size(); i += step)
      if (rows[i].second.size() == experts) kept.push_back(i);
    for (const size_t i : kept) map.columns.push_back(fmt::format("{:.0f}", rows[i].first));
    for (size_t e = 0; e < experts; ++e)
      for (const size_t i : kept) map.values.push_back(rows[i].second[e]);
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace ashlar::report
